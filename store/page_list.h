/* Pages in the order they came, linked by next. Room: store. For one thread. */
#ifndef FP_PAGE_LIST_H
#define FP_PAGE_LIST_H

#include "store.h"

struct fp_page_list {
	struct fp_page_io *head, *tail;
};

static inline void fp_page_list_append(struct fp_page_list *chain, struct fp_page_io *page)
{
	page->next = NULL;
	if (chain->head)
		chain->tail->next = page;
	else
		chain->head = page;
	chain->tail = page;
}

static inline struct fp_page_io *fp_page_list_pop(struct fp_page_list *chain)
{
	struct fp_page_io *page = chain->head;

	if (page)
		chain->head = page->next;
	return page;
}

#endif
