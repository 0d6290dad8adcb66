"""Who takes memory away: in the compute side, only the functions that are listed here tell the
kernel to drop pages.

A page may go only if nobody holds it, if the program asked for it, or if it is the agent's own. So
a function that drops pages gets a line here, which says why no holder loses its page.
"""
import re

import sources

DROP = re.compile(r"\b(?:madvise\(|SYS_process_madvise,)[^;]*?\bMADV_(?:DONTNEED|DONTNEED_LOCKED|FREE|PAGEOUT|REMOVE)\b")
FUNCTION = re.compile(r"^\w[\w \*]*?\b(\w+)\(", re.MULTILINE)

WHY = {
    "claim_fresh": "a page of a mapping that the program does not know yet",
    "drop_held": "the program asked for it: as in the kernel, a holder keeps the old page",
    "drop_vectored": "clean pages: nobody holds them for writing, as that lifts their protection",
    "empty": "pages of a stage, which UFFDIO_MOVE took or which are written",
    "forget_pages": "in a child before its threads run: WIPEONFORK",
    "fp_far_drop": "clean pages, and the copies at the new place of a mremap that is undone",
    "fp_far_renew_queue": "a table of the agent",
    "fp_kernel_filled_open": "a table of the agent",
    "fp_unheld_take": "the kernel drops the page only if nobody holds it; it pins no page that a child shares",
    "is_present": "the page that the function itself has installed, in a child before its threads run",
    "may_revive": "a poisoned page, which has no memory",
    "move_bytes": "a poisoned page, which has no memory",
    "probe_process_madvise": "a page of the agent, at the start",
    "renew_kernel": "the agent's own pages",
    "revive": "a poisoned page, which has no memory",
}


def check(path, text):
    code = sources.code_of_c(text)
    starts = [(m.start(), m[1]) for m in FUNCTION.finditer(code)]
    faults = []
    for drop in DROP.finditer(code):
        name = [n for at, n in starts if at < drop.start()][-1:]
        if not name or name[0] not in WHY:
            line = code.count("\n", 0, drop.start()) + 1
            faults.append(f"{path}:{line}: {''.join(name)} drops pages, and test/style/drops.py does not say why it may")
    return faults


SAMPLES = [
    ("sample1.c", "static void empty(void)\n{\n\tmadvise(a, n, MADV_DONTNEED);\n}\n", False),
    ("sample2.c", "static void sample(void)\n{\n\tmadvise(a, n, MADV_DONTNEED);\n}\n", True),
    ("sample3.c", "int sample(void)\n{\n\treturn syscall(SYS_process_madvise, f, r, 1,\n\t\tMADV_FREE);\n}\n", True),
    ("sample4.c", "int sample(void)\n{\n\treturn madvise(a, n, MADV_DODUMP);\n}\n", False),
]

sources.run(check, SAMPLES, sources.files(("uffd",), (".c", ".h")))
