#!/usr/bin/python3
"""scripts/uninstall.py FOLDER: removes what `meson install` of this build folder installed. DESTDIR
is honoured: a relative one begins at FOLDER, as for meson. A configuration that was changed stays,
and so does the user farpage."""
import json
import os
import subprocess
import sys

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../systemd/farpaged.yaml")


def read(folder, name):
    with open(os.path.join(folder, "meson-info", f"intro-{name}.json"), encoding="utf-8") as f:
        return json.load(f)


def refuse_if_in_use(paths):
    """Ends with a message if a node serves by a unit of these paths: it would lose its unit, and
    programs their pages. A unit of another installation does not matter."""
    try:
        unit = subprocess.run(["systemctl", "show", "-P", "FragmentPath", "farpaged"], capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return
    if not unit or os.path.realpath(unit) not in map(os.path.realpath, paths):
        return
    for state in ("is-active", "is-enabled"):
        if subprocess.run(["systemctl", "--quiet", state, "farpaged"], stderr=subprocess.DEVNULL).returncode == 0:
            sys.exit("uninstall: the service farpaged is in use: drain the node (man farpage-node), then run "
                     "`systemctl disable --now farpaged`, then uninstall again")


def remove(path):
    """Returns whether there was such a file."""
    try:
        os.remove(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        sys.exit(f"uninstall: {path}: {error.strerror}. If root installed it, use `sudo make uninstall`")
    print(f"Removing {path}")
    return True


def remove_configuration(path):
    try:
        with open(path, "rb") as ours, open(EXAMPLE, "rb") as example:
            changed = ours.read() != example.read()
    except FileNotFoundError:
        return
    if changed:
        print(f"Keeping {path}, which was changed")
    else:
        remove(path)


def main():
    folder, dest = os.path.abspath(sys.argv[1]), os.environ.get("DESTDIR", "")
    dest = dest and os.path.join(folder, dest)
    if not os.path.exists(os.path.join(folder, "meson-info/intro-installed.json")):
        sys.exit(f"uninstall: {folder} is no build folder; `make BUILD=FOLDER uninstall` names another")
    options = {option["name"]: option["value"] for option in read(folder, "buildoptions")}
    configuration = os.path.join(options["prefix"], options["sysconfdir"], "farpage/farpaged.yaml")
    paths = [dest + path for path in read(folder, "installed").values()]
    if not dest:
        refuse_if_in_use(paths)
    if not any([remove(path) for path in paths]):
        sys.exit(f"uninstall: nothing of {folder} is installed in {dest + options['prefix']}")
    remove_configuration(dest + configuration)
    for own in {os.path.dirname(path) for path in [*paths, dest + configuration]}:
        if os.path.basename(own) == "farpage" and os.path.isdir(own) and not os.listdir(own):
            os.rmdir(own)
    if not dest:
        print("The user and the group farpage stay, if systemd-sysusers made them: `userdel farpage` removes both")


main()
