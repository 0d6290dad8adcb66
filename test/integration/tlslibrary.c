/* A library with thread-local data, loaded by test_preload_forkstate. Room: test/integration. */
int *fp_tls_library(void);

static __thread int own[64];

__attribute__((visibility("default"))) int *fp_tls_library(void)
{
	return own;
}
