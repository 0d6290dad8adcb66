"""The memory of farpaged against clients that mean it harm: it is never more than its pools, and no touch of it kills the node."""
import mmap
import os
import unittest

from farpaged import MEMFD, NOT_PERMITTED, Farpaged, Refused, main

MIB = 1 << 20
HUGE = 2 * MIB
HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
MADV_REMOVE, MAP_HUGETLB = 9, 0x40000


def config(size="64M", limits="", **keys):
    more = "".join(f", {key}: {value}" for key, value in keys.items())
    return (f'listen: [ "unix:SOCKET", "tcp://127.0.0.1:0" ]\npools: [ {{ name: main, size: {size}{more} }} ]\n'
            f"limits: {{ {limits} }}\n")


class Case(unittest.TestCase):
    def start(self, *args, **options):
        node = Farpaged(*args, **options)
        self.addCleanup(node.__exit__)
        return node

    def refused(self, status, call, *args):
        with self.assertRaises(Refused) as refused:
            call(*args)
        self.assertEqual(refused.exception.status, status)

    def lease_mapped(self, session, size):
        lease_id, size, fd = session.lease(size)
        memory = mmap.mmap(fd, size)
        os.close(fd)
        return lease_id, memory


class HugePages(Case):
    PAGES = 4

    def setUp(self):
        try:
            with open(HUGE_PAGES, encoding="ascii") as f:
                before = int(f.read())
            self.set_pages(before + self.PAGES)
            self.addCleanup(self.set_pages, before)
            with open(HUGE_PAGES, encoding="ascii") as f:
                if int(f.read()) < before + self.PAGES:
                    self.skipTest("the host has no huge pages to give")
        except OSError as e:
            self.skipTest(f"huge pages can't be set up here: {e}")

    @staticmethod
    def set_pages(n):
        with open(HUGE_PAGES, "w", encoding="ascii") as f:
            f.write(str(n))

    def use_up(self):
        """Takes every huge page that nobody has."""
        taken = []
        try:
            while True:
                page = mmap.mmap(-1, HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
                page[0] = 1
                taken.append(page)
        except OSError:
            return taken

    def test_punched_page(self):
        """A client frees the page of its lease and uses it up; then it asks the node to write and to read there."""
        node = self.start(config(f"{self.PAGES * 2}M", backing="hugetlb"))
        session, reader, victim = node.session(features=MEMFD), node.session(node.urls[1]), node.session(node.urls[1])
        lease_id, memory = self.lease_mapped(session, HUGE)
        memory[0] = 1
        reader.adopt(session)
        kept = victim.lease(HUGE)[0]
        memory.madvise(MADV_REMOVE)
        taken = self.use_up()
        self.addCleanup(lambda: [page.close() for page in taken])
        with self.assertRaises((Refused, EOFError, ConnectionError)):
            session.link().write([(lease_id, 4, 0)], b"boom")
        with self.assertRaises((Refused, EOFError, ConnectionError)):
            reader.link().read((lease_id, 4, 0))
        link = victim.link()
        link.write([(kept, 4, 0)], b"safe")
        self.assertEqual(link.read((kept, 4, 0)), b"safe", node.log())

    def test_pages_are_there_when_leased(self):
        """A lease has its huge pages from the start: nothing that others do makes the node fault on them."""
        node = self.start(config(f"{self.PAGES * 2}M", backing="hugetlb"))
        session = node.session(node.urls[1])
        session.lease(HUGE)
        with open(f"/proc/{node.process.pid}/status", encoding="ascii") as f:
            self.assertEqual(next(int(line.split()[1]) for line in f if line.startswith("HugetlbPages")), HUGE >> 10)


class Links(Case):
    def test_none_to_what_is_mapped(self):
        """Who maps its leases has no use for a link, and could make the node touch pages that it has taken away."""
        session = self.start(config()).session(features=MEMFD)
        self.refused(NOT_PERMITTED, session.link)
        session.info()


if __name__ == "__main__":
    main()
