#!/bin/sh
# systemd/install-config.sh FOLDER: the example of a configuration, but never over one that is there. Called by meson install.
set -eu
target=${DESTDIR:-}$1/farpaged.yaml
if [ -e "$target" ]; then
	echo "Keeping $target"
	exit
fi
echo "Installing farpaged.yaml to ${target%/*}"
mkdir -p "${target%/*}"
cp "$(dirname "$0")/farpaged.yaml" "$target"
chmod 644 "$target"
