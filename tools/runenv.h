/*
 * The environment that makes a program run as `farpage run` would run it. Room: tools.
 */
#ifndef FP_RUNENV_H
#define FP_RUNENV_H

#include <stdio.h>

struct fp_settings;

/* Warns of variables that are probably misspelt. */
void fp_runenv_warn(void);

/*
 * Prints LD_PRELOAD and the variables of the settings, as NAME=VALUE in lines that a shell and
 * systemd's EnvironmentFile= read. Relative paths become absolute, because a service runs in a
 * folder of its own. preload: the path of the preload library; settings: as fp_settings_read read
 * them from this environment. 0 or a negative errno.
 */
int fp_runenv_print(const char *preload, const struct fp_settings *settings, FILE *out);

#endif
