#!/usr/bin/python3
"""stress-ng's memory methods, which verify what they wrote, for a minute. The plain run only shows the peak."""
import farapp

FAR_SECONDS = 60


def test():
    command = [farapp.need_program("/usr/bin/stress-ng"), "--vm", "2", "--vm-bytes", "256M", "--vm-method", "all",
               "--verify", "--timeout"]
    farapp.compare(command + ["5"], far_command=command + [str(FAR_SECONDS)], output=False)


farapp.main(test)
