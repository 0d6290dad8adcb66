/*
 * The memory of this end that the device reads and writes for one link: registered regions, and
 * bounce pages for buffers elsewhere. Room: transport, beside rdma_link.h.
 */
#ifndef FP_RDMA_MEMORY_H
#define FP_RDMA_MEMORY_H

#include "transport.h"
#include "verbs.h"

#define FP_RDMA_BOUNCE_BYTES 4096u /* of one bounce page */
/* The most regions that fp_link_register may name. Bytes of buffers outside of them are copied. */
#define FP_RDMA_MAX_REGIONS 4u

/* Zeroed before fp_rdma_memory_init. */
struct fp_rdma_memory {
	struct fp_verbs_domain *domain;
	enum fp_protocol protocol;
	uint32_t max_inline;
	uint8_t *pages; /* the bounce pages */
	size_t len_bytes;
	struct fp_verbs_region bounce; /* the bounce pages, registered */
	unsigned n_regions;
	struct fp_verbs_region regions[FP_RDMA_MAX_REGIONS];
};

/*
 * Allocates and registers n_pages bounce pages for conn, and references its domain. 0, -ENOMEM, or
 * an error of fp_verbs_register. Release with fp_rdma_memory_free also after an error.
 */
int fp_rdma_memory_init(struct fp_rdma_memory *memory, const struct fp_verbs_conn *conn,
                        enum fp_protocol protocol, unsigned n_pages);
/* opened_here: false in a forked child, which must not release its parent's registrations. */
void fp_rdma_memory_free(struct fp_rdma_memory *memory, bool opened_here);
/*
 * Registers a region. It stays registered until fp_rdma_memory_free. 0, -ENOSPC if there are
 * FP_RDMA_MAX_REGIONS already, or an error of fp_verbs_register.
 */
int fp_rdma_memory_register(struct fp_rdma_memory *memory, void *base, size_t len_bytes);
/*
 * Chooses how `work` carries the `len` bytes at `buf`, or the first part of them: inline, in place,
 * or through the bounce page with the number `page`. The caller has set the op of `work`. This
 * function sets inline_data, local, lkey and len_bytes. It copies the bytes of a WRITE to the
 * bounce page at once. It returns true if a READ uses the bounce page: then the caller copies the
 * bytes from work->local to `buf`. If `buf` is NULL, the bytes of the READ are not wanted.
 */
bool fp_rdma_memory_choose(const struct fp_rdma_memory *memory, size_t page, uint8_t *buf, uint32_t len,
                           struct fp_verbs_work *work);

#endif
