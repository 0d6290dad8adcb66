"""A real terminal for a test: tmux runs a command in a window of a given size, takes its keys and
reads its screen. Room: test/lib.

A test that needs it calls need_tmux() first. Each terminal has a tmux server of its own, which ends
with it.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import termios
import time

TIMEOUT = 60


def need_tmux():
    """Ends the test as skipped where there is no tmux."""
    if not shutil.which("tmux"):
        print("skipped: no tmux to play the terminal")
        sys.exit(77)


class Terminal:
    """A context manager. The command runs in a window of columns times rows. After its end, a line
    with its exit status stays on the screen."""

    def __init__(self, command, columns=80, rows=24, env=None):
        self.dir = tempfile.mkdtemp(prefix="farpage-terminal.")
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "env", "LC_ALL=C.UTF-8", *self._words(env),
                  "sh", "-c", 'trap : INT QUIT; "$@"; printf "\\nended with %d\\n" $?; exec sleep 600', "sh", *command)

    @staticmethod
    def _words(env):
        return [f"{name}={value}" for name, value in (env or {}).items()]

    def tmux(self, *args):
        """Runs a command of tmux on this terminal's server; returns what it prints."""
        env = {name: value for name, value in os.environ.items() if name not in ("TMUX", "FARPAGE_RUNTIME_DIR")}
        return subprocess.run(["tmux", "-S", os.path.join(self.dir, "server"), "-f", "/dev/null", *args],
                              env=env, check=True, capture_output=True, text=True, timeout=TIMEOUT).stdout

    def type(self, *keys):
        """Keys as tmux names them: q, Down, PageDown, Escape, C-c."""
        self.tmux("send-keys", *keys)

    def resize(self, columns, rows):
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self):
        """Its lines, without blanks at their ends."""
        return self.tmux("capture-pane", "-p").splitlines()

    def history(self):
        """All lines, also those above the screen."""
        return self.tmux("capture-pane", "-p", "-S", "-").splitlines()

    def write(self, text):
        """Puts text on the screen, as another program may."""
        with open(self._format("#{pane_tty}"), "w", encoding="utf-8") as tty:
            tty.write(text)

    def signal(self, number):
        """Sends a signal to the command."""
        shell = self._format("#{pane_pid}")
        with open(f"/proc/{shell}/task/{shell}/children", encoding="utf-8") as children:
            os.kill(int(children.read()), number)

    def is_plain(self):
        """True if lines are edited and echoed, and the cursor and the main screen are shown: as a
        command must leave it."""
        path, cursor, alternate = self._format("#{pane_tty} #{cursor_flag} #{alternate_on}").split()
        with open(path, "rb", buffering=0) as tty:
            local = termios.tcgetattr(tty)[3]
        return bool(local & termios.ICANON and local & termios.ECHO) and (cursor, alternate) == ("1", "0")

    def _format(self, text):
        return self.tmux("display-message", "-p", text).strip()

    def scrolled_away(self):
        """How many lines are above the screen: a command that fills the screen adds none."""
        return int(self._format("#{history_size}"))

    def wraps(self):
        """True if a line, also one above the screen, was too long and goes on in the next."""
        return len(self.tmux("capture-pane", "-p", "-J", "-S", "-").splitlines()) != len(self.history())

    def wait_for(self, holds):
        """Waits until holds(lines) is true of the screen; returns its lines."""
        deadline = time.monotonic() + TIMEOUT
        while not holds(lines := self.screen()):
            if time.monotonic() > deadline:
                raise AssertionError("the screen never became so:\n" + "\n".join(lines))
            time.sleep(0.02)
        return lines

    def wait_for_text(self, text):
        return self.wait_for(lambda lines: any(text in line for line in lines))

    def close(self):
        try:
            self.tmux("kill-server")
        except subprocess.CalledProcessError:
            pass  # it has ended by itself
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
