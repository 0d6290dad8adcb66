/*
 * Kernel interfaces that are newer than the oldest headers we build against (Debian 12: those of
 * 6.1). Values come from include/uapi/linux of Linux 6.8 and later. Room: uffd/kernel. Only uffd.c
 * uses the userfaultfd part.
 */
#ifndef FP_ABI_H
#define FP_ABI_H

#include <linux/userfaultfd.h>
#include <sys/mman.h>
#include <stdint.h>

#ifndef _UFFDIO_MOVE
#define _UFFDIO_MOVE 0x05
struct uffdio_move {
	__u64 dst;
	__u64 src;
	__u64 len;
	__u64 mode;
	__s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, _UFFDIO_MOVE, struct uffdio_move)
#endif

#ifndef _UFFDIO_POISON
#define _UFFDIO_POISON 0x08
struct uffdio_poison {
	struct uffdio_range range;
	__u64 mode;
	__s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, _UFFDIO_POISON, struct uffdio_poison)
#endif

#ifndef UFFD_FEATURE_POISON
#define UFFD_FEATURE_POISON (1 << 14)
#endif
#ifndef UFFD_FEATURE_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

#endif
