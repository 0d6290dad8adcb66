"""What the shells complete is what the commands and their man pages say.

    FARPAGE_BUILD=build test/docs/test_completion.py
"""
import os
import re
import shutil
import subprocess
import unittest

import manual
import terminal

BASH = os.path.join(manual.ROOT, "completion/farpage.bash")
ZSH = os.path.join(manual.ROOT, "completion/_farpage")
URLS = {"shm:", "tcp://", "rdma://", "rdma+tcp://", "auto://"}
# The function is asked as the shell asks it; the specs that it hands over are shown.
ASK_BASH = """source "$1"; while read -r line; do COMP_LINE=${line%|}; COMP_POINT=${#COMP_LINE}; COMP_WORDS=($COMP_LINE)
[[ $COMP_LINE == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
_farpage "${COMP_WORDS[0]}" </dev/null; printf '%s\\n' "${COMPREPLY[@]}" "|"; done"""
ASK_ZSH = """_arguments() { shift 2; print -rl -- "$@" }; _describe() { print -rl -- ${(P)2} }
while read -r line; do line=${line%|}; words=(${(s: :)line}); [[ $line == *' ' ]] && words+=(''); CURRENT=$#words
source $1 </dev/null; print '|'; done"""


def ask(shell, script, path, *lines):
    """Of each line what it is completed to. One shell answers all, which takes less time."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "BASH_ENV": "", "PATH": ":".join(map(os.path.dirname, manual.PROGRAMS.values())) + ":" + os.environ["PATH"]}
    done = subprocess.run([*shell, "-c", script, "ask", path], input="".join(f"{line}|\n" for line in lines), capture_output=True,
                          text=True, env=environment, timeout=manual.TIMEOUT)
    assert done.stderr == "", done.stderr
    answers = [set(answer.splitlines()) - {""} for answer in done.stdout.split("|\n")[:-1]]
    assert len(answers) == len(lines), done.stdout
    return dict(zip(lines, answers))


def words_of_pages():
    """Each option that takes one of a few words, as its page has it."""
    for command in manual.subcommands():
        for tag in manual.page_of(command).tags():
            for name, words in re.findall(r"(--[\w-]+) ([a-z]+(?:\|[a-z]+)+)", tag.replace("[:SIZE]", "")):
                if name in manual.options_of(command):
                    yield command, name, set(words.split("|"))


def words(command):
    return {option for option in manual.options_of(command) if option.startswith("--")}


def names(command=""):
    return set(re.findall(r"^  ([a-z]+) ", manual.shown_help(f"farpage {command}".strip()), re.MULTILINE))


class Bash(unittest.TestCase):
    def complete(self, line):
        return self.ask(line)[line]

    @staticmethod
    def ask(*lines):
        return ask(["bash", "--norc"], ASK_BASH, BASH, *lines)

    def test_commands(self):
        self.assertEqual(self.complete("farpage "), names())
        self.assertEqual(self.complete("farpage h"), {"hist"})
        self.assertEqual(self.complete("farpage bench "), names("bench"))
        self.assertEqual(self.complete("farpage node "), {"status", "drain", "undrain"})

    def test_options(self):
        shown = self.ask(*(f"{command} --" for command in manual.subcommands()))
        for command in manual.subcommands():
            with self.subTest(command):
                self.assertEqual(shown[f"{command} --"], words(command))
        self.assertEqual(self.complete("farpage run --report --on"), {"--on-loss"})
        self.assertEqual(self.complete("farpage node status tcp://x --js"), {"--json"})

    def test_words(self):
        shown = self.ask(*(f"{command} {option} " for command, option, _ in words_of_pages()))
        for command, option, expected in words_of_pages():
            with self.subTest(command, option=option):
                self.assertEqual(shown[f"{command} {option} "], expected)
        self.assertEqual(self.complete("farpage hist --format=h"), {"hgrm"})

    def test_values(self):
        self.assertEqual(self.complete(f"farpage run --config {BASH[:-2]}"), {BASH})
        self.assertEqual(self.complete("farpage run --node "), URLS)
        self.assertEqual(self.complete("farpage node status "), URLS)
        self.assertEqual(self.complete("farpage run --node r"), {"rdma://", "rdma+tcp://"})
        self.assertEqual(self.complete("farpage run --node=tcp://mem1 --rep"), {"--report"})
        self.assertEqual(self.complete("farpage hist --since=/tmp/a --ki"), {"--kind"})

    def test_programs(self):
        lines = ["farpage run basen", "farpage run --report basen", "farpage run --node tcp://x --heap all basen",
                 "farpage run -- basen", "farpage run --report -- basen"]
        for line, shown in self.ask(*lines).items():
            with self.subTest(line):
                self.assertIn("basename", shown)
        self.assertEqual(self.complete("farpage run ls --re"), set())


@unittest.skipUnless(shutil.which("zsh") and shutil.which("tmux"), "zsh or tmux is not installed")
class Zsh(unittest.TestCase):
    def complete(self, line):
        return self.ask(line)[line]

    @staticmethod
    def ask(*lines):
        return ask(["zsh", "-f"], ASK_ZSH, ZSH, *lines)

    def test_commands(self):
        self.assertEqual({line.split(":")[0] for line in self.complete("farpage ")}, names())
        self.assertEqual({line.split(":")[0] for line in self.complete("farpage bench ")}, names("bench"))

    def test_options(self):
        answers = self.ask(*(f"{command} -" for command in manual.subcommands()))
        for command in manual.subcommands():
            with self.subTest(command):
                shown = [spec for spec in answers[f"{command} -"] if spec.startswith("*--")]
                self.assertEqual({re.match(r"\*([\w-]+)\[", spec)[1] for spec in shown}, words(command))
                for spec in shown:
                    option = re.match(r"\*([\w-]+)", spec)[1]
                    self.assertEqual(bool(re.search(r"\]:[A-Z]+:", spec)), manual.options_of(command)[option], spec)

    def test_words(self):
        answers = self.ask(*{f"{command} -" for command, _, _ in words_of_pages()})
        for command, option, expected in words_of_pages():
            with self.subTest(command, option=option):
                spec = next(spec for spec in answers[f"{command} -"] if spec.startswith(f"*{option}["))
                self.assertEqual(set(re.search(r":\((.*)\)$", spec)[1].split()), expected)

    def test_values(self):
        """The keys are typed in a real shell, which reads the specs itself."""
        path = ":".join(map(os.path.dirname, manual.PROGRAMS.values())) + ":" + os.environ["PATH"]
        with terminal.Terminal(["zsh", "-fi"], env={"PATH": path, "PS1": "%# "}) as window:
            window.type(f"fpath=({os.path.dirname(ZSH)} $fpath); autoload -Uz compinit; compinit -D -u; clear", "Enter")
            for line, shown in (("farpage run --node ", URLS), ("farpage node status ", URLS), ("farpaged --listen ", {"unix:", "tcp://"})):
                with self.subTest(line):
                    window.type("C-u", "C-l", line, "Tab", "Tab")
                    window.wait_for(lambda lines: shown <= set(" ".join(lines).split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
