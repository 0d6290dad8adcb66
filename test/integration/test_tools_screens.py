"""What the commands of the first hour print fits the terminal, also a narrow one: no line goes on
in the next."""
import os

import farapp
import terminal
import toolcase

SIZES = ((80, 24), (60, 15), (200, 50))
COMMANDS = ("", "run", "hist", "ps", "top", "node", "bench", "bench fault", "bench link", "bench touch")
FARPAGED = os.path.join(farapp.build, "daemon", "farpaged")


class Screens(toolcase.ToolCase):
    def seen(self, script, columns, rows):
        """Runs the script in a terminal. Returns all lines, of which none was too long."""
        with terminal.Terminal(["sh", "-c", script], columns, rows, {"FARPAGE_RUNTIME_DIR": self.runtime}) as window:
            window.wait_for_text("ended with")
            lines = window.history()
            self.assertIn("ended with 0", lines)
            self.assertFalse(window.wraps(), "\n".join(lines))
        return lines

    def test_help(self):
        for columns, rows in SIZES:
            with self.subTest(columns=columns):
                script = [f"{toolcase.FARPAGE} {command} --help" for command in COMMANDS]
                script += [f"{FARPAGED} --help"] if columns >= 80 else []
                lines = self.seen(" && ".join(script), columns, rows)
                self.assertGreater(max(map(len, lines)), min(columns, 99) - 10)  # the room is used

    def test_report(self):
        fill = "/usr/bin/python3 -c 'x = bytearray(16 << 20)'"
        for columns, rows in SIZES:
            with self.subTest(columns=columns):
                lines = self.seen(f"{toolcase.FARPAGE} run --pool-size 256M --local-memory 4M --report -- sh -c \"{fill}\"", columns, rows)
                for title in ("faults: ", "latency:", "nodes:"):
                    self.assertTrue(any(title in line for line in lines), title)
                row = lines[lines.index("nodes:") + 1].split()
                self.assertLessEqual({"url", "state", "read", "written"}, set(row))
                self.assertEqual("reconnects" in row, columns == 200)
                if columns < 200:
                    self.assertIn("(shortened to the terminal: 2>FILE has all columns)", lines)

    def test_bench(self):
        small = {"touch": "--transport shm --pages 512 --local 512K --rounds 1", "fault": "--transport floor,shm --pages 64 --rounds 1",
                 "link": "--sizes 4K --seconds 0.001"}
        important = {"touch": "random read us per page", "fault": "p50 us", "link": "gib per second"}
        for columns, rows in SIZES:
            for name, options in small.items():
                with self.subTest(name, columns=columns):
                    lines = self.seen(f"{toolcase.FARPAGE} bench {name} {options}", columns, rows)
                    self.assertTrue(any(important[name] in line for line in lines), lines)
                    self.assertEqual("(shortened to the terminal: a pipe shows all columns)" in lines, columns < 200)


if __name__ == "__main__":
    terminal.need_tmux()
    toolcase.main()
