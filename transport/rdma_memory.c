/* The memory that the device reads and writes. Room: transport; see rdma_memory.h. */
#include "rdma_memory.h"

#include <errno.h>
#include <string.h>

#include "lockedmem.h"

int fp_rdma_memory_init(struct fp_rdma_memory *memory, const struct fp_verbs_conn *conn,
                        enum fp_protocol protocol, unsigned n_pages)
{
	memory->domain = fp_verbs_domain_ref(fp_verbs_conn_domain(conn));
	memory->protocol = protocol;
	memory->max_inline = fp_verbs_conn_max_inline(conn);
	memory->len_bytes = (size_t)n_pages * FP_RDMA_BOUNCE_BYTES;
	memory->pages = fp_lockedmem_new(memory->len_bytes);
	if (!memory->pages)
		return -ENOMEM;
	return fp_verbs_register(memory->domain, memory->pages, memory->len_bytes, FP_VERBS_LOCAL,
	                         &memory->bounce);
}

void fp_rdma_memory_free(struct fp_rdma_memory *memory, bool opened_here)
{
	if (opened_here) {
		for (unsigned i = 0; i < memory->n_regions; i++)
			fp_verbs_deregister(&memory->regions[i]);
		fp_verbs_deregister(&memory->bounce);
		fp_verbs_domain_unref(memory->domain);
	}
	fp_lockedmem_free(memory->pages, memory->len_bytes);
}

int fp_rdma_memory_register(struct fp_rdma_memory *memory, void *base, size_t len_bytes)
{
	int r;

	if (memory->n_regions == FP_RDMA_MAX_REGIONS)
		return -ENOSPC;
	r = fp_verbs_register(memory->domain, base, len_bytes, FP_VERBS_LOCAL,
	                      &memory->regions[memory->n_regions]);
	if (r == 0)
		memory->n_regions++;
	return r;
}

static const struct fp_verbs_region *find_region(const struct fp_rdma_memory *memory, const uint8_t *buf,
                                                 size_t len)
{
	for (unsigned i = 0; i < memory->n_regions; i++) {
		const struct fp_verbs_region *region = &memory->regions[i];
		size_t at = (size_t)(buf - (const uint8_t *)region->base);

		if (buf >= (const uint8_t *)region->base && at <= region->len_bytes &&
		    len <= region->len_bytes - at)
			return region;
	}
	return NULL;
}

bool fp_rdma_memory_choose(const struct fp_rdma_memory *memory, size_t page, uint8_t *buf, uint32_t len,
                           struct fp_verbs_work *work)
{
	bool any = memory->protocol == FP_PROTOCOL_AUTO, writes = work->op == FP_VERBS_WRITE;
	const struct fp_verbs_region *region = NULL;

	work->local = buf;
	work->len_bytes = len;
	work->inline_data =
	    writes && len <= memory->max_inline && (any || memory->protocol == FP_PROTOCOL_INLINE);
	if (work->inline_data)
		return false;
	if (any || memory->protocol == FP_PROTOCOL_REGISTERED)
		region = find_region(memory, buf, len);
	if (region) {
		work->lkey = region->lkey;
		return false;
	}
	work->len_bytes = FP_MIN(len, FP_RDMA_BOUNCE_BYTES);
	work->local = memory->pages + page * FP_RDMA_BOUNCE_BYTES;
	work->lkey = memory->bounce.lkey;
	if (writes)
		memcpy(work->local, buf, work->len_bytes);
	return !writes;
}
