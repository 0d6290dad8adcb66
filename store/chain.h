/*
 * Pages in the order they came, linked by their next. Room: store. One thread's.
 */
#ifndef FP_CHAIN_H
#define FP_CHAIN_H

#include "store.h"

struct fp_chain {
	struct fp_page_io *head, *tail;
};

static inline void fp_chain_append(struct fp_chain *chain, struct fp_page_io *page)
{
	page->next = NULL;
	if (chain->head)
		chain->tail->next = page;
	else
		chain->head = page;
	chain->tail = page;
}

static inline struct fp_page_io *fp_chain_pop(struct fp_chain *chain)
{
	struct fp_page_io *page = chain->head;

	if (page)
		chain->head = page->next;
	return page;
}

#endif
