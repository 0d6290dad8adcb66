/* See far_pieces.h. */
#include "far_pieces.h"

#include <errno.h>

#include "cleanup.h"
#include "local.h"
#include "local_stack.h"

size_t fp_page_round(size_t len)
{
	return (len + FP_PAGE_SIZE - 1) & ~(size_t)(FP_PAGE_SIZE - 1);
}

struct fp_space *fp_touched(const void *addr, size_t len)
{
	struct fp_space *space = fp_shim_space();

	return space && fp_space_overlaps(space, addr, len) ? space : NULL;
}

/*
 * Finds the next piece of [addr, end): all of it is far, or all of it is plain. The agent's own
 * pages count as far, because the kernel must not get a call about them.
 */
static bool next_piece(const struct fp_space *space, char *addr, char *end, size_t *ret_len)
{
	struct fp_space_borders at = fp_space_borders(space);
	char *const borders[] = {at.own_start, at.own_end, at.start, at.end};
	unsigned i = 0;

	while (i < FP_ARRAY_LEN(borders) && addr >= borders[i])
		i++;
	*ret_len = (size_t)(FP_MIN(i < FP_ARRAY_LEN(borders) ? borders[i] : end, end) - addr);
	return i % 2 == 1; /* behind a start and before its end */
}

int fp_for_pieces(struct fp_space *space, void *start, size_t len, const struct fp_call *call)
{
	char *addr = start, *end = addr + fp_page_round(len);
	uint64_t mask;
	int r = 0;

	if ((uintptr_t)addr % FP_PAGE_SIZE)
		return -EINVAL;
	if (fp_page_round(len) < len || end < addr)
		return call->overflow ? call->overflow : -EINVAL;
	mask = fp_local_enter_masked();
	while (addr < end && (r == 0 || (r == -ENOMEM && !call->ends_at_hole))) {
		size_t piece;
		bool is_far = next_piece(space, addr, end, &piece);
		int done = is_far ? (int)FP_ON_LOCAL_STACK(call->far, call, space, addr, piece, 0, 0)
		                  : call->plain(call, addr, piece);

		r = done < 0 ? done : r;
		addr += piece;
	}
	fp_local_leave_masked(mask);
	return r;
}

static int hold_far(const struct fp_call *call, struct fp_space *space, void *addr, size_t len)
{
	return fp_space_hold(space, addr, len);
}

static int hold_plain(const struct fp_call *call, void *addr, size_t len)
{
	return 0;
}

int fp_pieces_hold(const void *addr, size_t len)
{
	const struct fp_call call = {.far = hold_far, .plain = hold_plain};
	uintptr_t start = (uintptr_t)addr & ~(uintptr_t)(FP_PAGE_SIZE - 1);
	struct fp_space *space = fp_touched(addr, len);
	int saved = errno, r = 0;

	if (space)
		r = fp_for_pieces(space, (void *)start, len + ((uintptr_t)addr - start), &call);
	errno = saved;
	return r;
}
