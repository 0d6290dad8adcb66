"""farpage bench touch: it says what one operation is, and what kinds of faults each pass took."""
import json

import toolcase

ROUNDS, PAGES, LOCAL = 2, 2048, 512
SMALL = ("--transport", "shm", "--pages", str(PAGES), "--local", f"{LOCAL * 4}K", "--rounds", str(ROUNDS))
KINDS = ["zero", "read", "write", "protect", "rescued", "present", "prefetched"]


class Touch(toolcase.ToolCase):
    def touch(self, *args):
        status, out, err = self.farpage("bench", "touch", *SMALL, *args)
        self.assertEqual((status, err), (0, ""))
        return out.decode()

    def test_kinds_of_faults(self):
        for mode in ("thread", "inline"):
            with self.subTest(mode):
                contender, = json.loads(self.touch("--json", "--fault-mode", mode))["contenders"]
                faults = contender["faults"]
                self.assertEqual(list(faults), ["sequential_read", "random_read", "random_write"])
                for name, kinds in faults.items():
                    self.assertEqual(list(kinds), KINDS)
                    self.assertEqual(kinds["zero"], 0, name)  # all was written at the start
                    self.assertEqual(kinds["read" if name == "random_write" else "write"], 0, name)
                    # what was not local came, once or more often
                    came = kinds["read"] + kinds["write"] + kinds["rescued"] + kinds["prefetched"] + kinds["present"]
                    self.assertGreaterEqual(came, ROUNDS * (PAGES - LOCAL) * 0.95, name)
                self.assertGreater(faults["sequential_read"]["prefetched"], faults["sequential_read"]["read"])
                self.assertGreater(faults["random_read"]["read"], faults["random_read"]["prefetched"])
                self.assertGreater(faults["random_write"]["write"], ROUNDS * (PAGES - LOCAL) / 2)

    def test_text(self):
        out = self.touch()
        self.assertIn("a read is one load, a write one store", out)
        for name in ("sequential read", "random read", "random write"):
            self.assertRegex(out, rf"(?m)^shm +{name}( +[0-9]+\.[0-9]){{{len(KINDS)}}}$")
        self.assertRegex(out, "(?m)^over +pass +" + " +".join(KINDS) + "$")


if __name__ == "__main__":
    toolcase.main()
