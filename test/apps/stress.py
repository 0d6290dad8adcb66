#!/usr/bin/python3
"""stress-ng's memory methods, which verify what they wrote: 128 MiB for 12 s, or (large) 256 MiB
for a minute.

The plain run only shows the peak.
"""
import farapp

SIZE, FAR_SECONDS = ("256M", 60) if farapp.large else ("128M", 12)


def test():
    command = [farapp.need_program("/usr/bin/stress-ng"), "--vm", "2", "--vm-bytes", SIZE, "--vm-method", "all",
               "--verify", "--timeout"]
    farapp.compare(command + ["5"], far_command=command + [str(FAR_SECONDS)], output=False)


farapp.main(test)
