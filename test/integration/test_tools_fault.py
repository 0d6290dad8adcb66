"""farpage bench fault: what faults over tcp are compared with, and longer wires."""
import json

import toolcase

SMALL = ("--pages", "64", "--rounds", "1", "--fault-mode", "inline")


class Fault(toolcase.ToolCase):
    def rows(self, *args):
        status, out, err = self.farpage("bench", "fault", *SMALL, "--json", *args)
        self.assertEqual((status, err), (0, ""))
        return {row["over"]: row for row in json.loads(out)["contenders"]}

    def test_bound_of_tcp(self):
        rows = self.rows()
        self.assertEqual(list(rows), ["bare-tcp", "floor", "shm", "tcp"])
        p50 = {name: row["p50_us"]["median"] for name, row in rows.items()}
        self.assertIsNone(rows["bare-tcp"]["fault_mode"])
        for name in ("bare-tcp", "floor", "shm"):
            self.assertIsNone(rows[name]["ratio_to_bound"])
        self.assertAlmostEqual(rows["tcp"]["ratio_to_bound"]["median"], p50["tcp"] / (p50["floor"] + 1.2 * p50["bare-tcp"]), 2)

    def test_longer_wires(self):
        """The node spins so long at least, for each READ."""
        rows = self.rows("--transport", "floor,bare-tcp,tcp", "--link-delay", "0,2000")
        self.assertEqual(list(rows), ["bare-tcp", "floor", "tcp", "tcp+0us", "tcp+2000us"])
        self.assertGreater(rows["tcp+2000us"]["p50_us"]["median"], 2000)
        self.assertIsNotNone(rows["tcp+2000us"]["ratio_to_bound"])
        self.assertEqual(list(self.rows("--link-delay", "1")), ["floor", "tcp+1us"])

    def test_wrong(self):
        for delay in ("x", "10001", "-1", "1,,2"):
            status, _, err = self.farpage("bench", "fault", "--link-delay", delay)
            self.assertEqual(status, 2, delay)
            self.assertIn("--link-delay", err)
        status, _, err = self.farpage("bench", "fault", "--link-delay", "1,2,3,4,5,6,7,8,9")
        self.assertEqual((status, "at most 8 transports and nodes" in err), (2, True))


if __name__ == "__main__":
    toolcase.main()
