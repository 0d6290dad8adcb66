/*
 * See robust.h. The thread's list is the one that the kernel knows: of the C library, or of whoever
 * set one by number. Of a mutex that inherits priority and is waited for the kernel has a record of
 * its own, by which it is handed on; the word says no more than that its owner died.
 */
#include "robust.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "call_args.h"
#include "far_pieces.h"
#include "local_stack.h"
#include "shim.h"

#define LIST_MAX 2048u /* as many as the kernel follows */

static atomic_bool is_open;
static pthread_key_t key;

/* As the kernel's handle_futex_death. The word stays resident while the kernel looks at it. */
static void hand_on(_Atomic uint32_t *word, uint32_t tid, bool inherits)
{
	const struct fp_pin_range range = {.addr = word, .len_bytes = sizeof(*word), .write = true};
	struct fp_pin hold;
	uint32_t now;

	if (fp_agent_pin(fp_shim_agent(), &range, 1, &hold) < 0)
		return;
	now = atomic_load(word);
	while ((now & FUTEX_TID_MASK) == tid)
		if (atomic_compare_exchange_weak(word, &now, (now & FUTEX_WAITERS) | FUTEX_OWNER_DIED))
			break;
	if ((now & FUTEX_TID_MASK) == tid && (now & FUTEX_WAITERS) && !inherits)
		FP_RAW(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
	fp_agent_unpin(fp_shim_agent(), &hold);
}

/* The lowest bit says that the mutex inherits priority. */
static struct robust_list *plain(struct robust_list *entry)
{
	return (struct robust_list *)(void *)((char *)entry - ((uintptr_t)entry & 1));
}

/* Takes the next entry out of the list. NULL: it is at its end. */
static struct robust_list *take(struct robust_list_head *head)
{
	struct robust_list *entry = head->list.next;

	if (!entry || entry == &head->list)
		return NULL;
	head->list.next = plain(entry)->next;
	return entry;
}

static bool is_far_list(const struct robust_list_head *head)
{
	struct robust_list *entry = head->list.next;

	for (unsigned n = 0; entry && entry != &head->list && n < LIST_MAX; n++) {
		if (fp_call_args_far(plain(entry), sizeof(*entry)))
			return true;
		entry = plain(entry)->next;
	}
	return false;
}

/* Hands on what the calling thread holds in far memory, as the kernel would. */
static void hand_all_on(void)
{
	struct robust_list_head *head = NULL;
	struct robust_list *entry;
	uint32_t tid = (uint32_t)FP_RAW(SYS_gettid, 0, 0, 0, 0, 0, 0);
	size_t size = 0;

	if (!fp_shim_agent() || FP_RAW(SYS_get_robust_list, 0, &head, &size, 0, 0, 0) < 0 || !head ||
	    !is_far_list(head))
		return;
	for (unsigned n = 0; n < LIST_MAX && (entry = take(head)); n++)
		hand_on((_Atomic uint32_t *)(void *)((char *)plain(entry) + head->futex_offset), tid,
		        (uintptr_t)entry & 1);
}

/* ---- threads ---- */

void fp_robust_thread_ends(void)
{
	FP_ON_LOCAL_STACK(hand_all_on, 0, 0, 0, 0, 0, 0);
}

/* Other destructors may still use their mutexes: this one comes again until the last round. */
static void on_thread_end(void *round)
{
	uintptr_t n = (uintptr_t)round;

	if (n < PTHREAD_DESTRUCTOR_ITERATIONS) {
		pthread_setspecific(key, (void *)(n + 1)); // NOLINT(performance-no-int-to-ptr)
		return;
	}
	fp_robust_thread_ends();
}

int fp_robust_open(void)
{
	int r = -pthread_key_create(&key, on_thread_end);

	atomic_store(&is_open, r == 0);
	fp_robust_thread_begins();
	return r;
}

void fp_robust_thread_begins(void)
{
	if (atomic_load_explicit(&is_open, memory_order_relaxed))
		pthread_setspecific(key, (void *)1);
}
