"""farpage bench touch: what it measures of whom, and what kinds of faults each pass took. Also the
picture that it draws, as bench fault does.
"""
import json

import picture
import toolcase

ROUNDS, PAGES, LOCAL = 2, 2048, 512
AWAY = 100 * (PAGES - LOCAL) / PAGES  # percent of the pages that are not local
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
                shown = json.loads(self.touch("--json", "--fault-mode", mode))
                contender, = shown["contenders"]
                self.assertEqual((contender["over"], contender["fault_mode"]), ("shm", mode))
                passes = {row["pass"]: row for row in shown["faults_in_percent_of_the_pages_touched"]}
                self.assertEqual(list(passes), ["sequential read", "strided read", "random read", "random write"])
                for name, kinds in passes.items():
                    self.assertEqual(list(kinds), ["over", "fault_mode", "pass", *KINDS])
                    self.assertEqual(kinds["zero"], 0, name)  # all was written at the start
                    self.assertEqual(kinds["read" if name == "random write" else "write"], 0, name)
                    # what was not local came, once or more often
                    came = kinds["read"] + kinds["write"] + kinds["rescued"] + kinds["prefetched"] + kinds["present"]
                    self.assertGreaterEqual(came, AWAY * 0.95, name)
                self.assertGreater(passes["sequential read"]["prefetched"], passes["sequential read"]["read"])
                self.assertGreater(passes["strided read"]["prefetched"], passes["strided read"]["read"])
                self.assertGreater(passes["random read"]["read"], passes["random read"]["prefetched"])
                self.assertGreater(passes["random write"]["write"], AWAY / 2)

    def test_text(self):
        """The floor has no passes; with it, each mode has its own."""
        out = self.touch("--transport", "floor", "--fault-mode", "both")
        for mode in ("thread", "inline"):
            self.assertRegex(out, rf"(?m)^  floor  {mode} +- +- +[0-9.]+ \[[0-9.]+ [0-9.]+\] +- +[0-9.]+ \[[0-9.]+ [0-9.]+\]")
            for name in ("sequential read", "strided read", "random read", "random write"):
                self.assertRegex(out, rf"(?m)^  shm +{mode} +{name}( +[0-9.e-]+){{{len(KINDS)}}} *$")
        self.assertRegex(out, "(?m)^  over +fault mode +pass +" + " +".join(KINDS) + " *$")

    def test_picture(self):
        """A curve for each contender, and the tables as ever."""
        for bench, more in (("touch", ()), ("fault", ("--pages", "512", "--local", "8M"))):
            with self.subTest(bench):
                path = self.path("latency.svg")
                status, out, err = self.farpage("bench", bench, *SMALL, "--transport", "floor", "--fault-mode", "both", *more, "--svg", path)
                self.assertEqual((status, err), (0, ""))
                self.assertIn(b"random read" if bench == "touch" else b"faults per second", out)
                panel, = picture.panels(path)
                self.assertEqual(panel.title, f"farpage bench {bench}: latency of random reads")
                self.assertEqual([name.split(":")[0] for name in panel.legend], ["floor, thread", "shm, thread", "floor, inline", "shm, inline"])
                self.assertEqual([len(set(curve)) > 50 for curve in panel.curves], [True] * 4)
        self.assertFails(self.farpage("bench", "touch", "--svg", "/nothing/there"), 2, "--svg /nothing/there", "No such file")

    def test_file_of_the_picture(self):
        """An older file keeps its bytes until there is a new picture, and none of them after that.
        A full disk is named."""
        path = self.path("older.svg")
        older = "older" * 100000
        with open(path, "w", encoding="ascii") as out:
            out.write(older)
        self.assertFails(self.farpage("bench", "touch", "--svg", path, "--rounds", "none"), 2, "--rounds none")
        self.assertFails(self.farpage("bench", "touch", "--svg", path, "--node", "tcp://127.0.0.1:1", "--size", "1M"), 1, "nothing listens")
        with open(path, encoding="ascii") as text:
            self.assertEqual(text.read(), older)
        self.touch("--rounds", "1", "--svg", path)
        self.assertEqual(len(picture.panels(path)), 1)
        status, out, err = self.farpage("bench", "touch", *SMALL, "--rounds", "1", "--svg", "/dev/full")
        self.assertEqual((status, b"random read" in out), (1, True))
        self.assertIn("the picture could not be written: No space left on device", err)

    def test_columns_do_not_run_together(self):
        """At least two spaces are between them, so that each row has as many cells as the first."""
        tables = 0
        for line in self.touch("--transport", "floor").splitlines():
            cells = [cell for cell in line.split("  ") if cell.strip()]
            if not line.startswith("  "):
                columns = None
            elif columns is None:
                columns, tables = len(cells), tables + 1
            else:
                self.assertEqual(len(cells), columns, line)
        self.assertEqual(tables, 2)

    def test_node_that_does_not_answer(self):
        """It is named once."""
        err = self.farpage("bench", "touch", "--node", "tcp://127.0.0.1:1", "--size", "1M")[2]
        self.assertRegex(err, "^farpage: bench touch: node tcp://127.0.0.1:1: nothing listens there[^\n]*\n$")


if __name__ == "__main__":
    toolcase.main()
