/*
 * Memory whose faults are served without a pager: the thread that faults copies the page, and drops
 * older pages in batches. Nothing else is done, so this is the floor of fault mode inline, also for
 * several threads at once. Room: test/bench.
 */
#ifndef FP_BAREFAULTS_H
#define FP_BAREFAULTS_H

#include <stdint.h>

/*
 * Maps n_pages pages that read as those of source, of which some local_pages are local at once. The
 * range is divided into n_parts equal parts, each of them with a
 * userfaultfd and a mapping of its own. Ends the program on an error. Once for each process.
 */
const char *barefaults_map(const char *source, uint32_t n_pages, uint32_t local_pages, unsigned n_parts);

#endif
