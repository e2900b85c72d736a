#!/usr/bin/env bash
# A real pyxis with enroot, and an image, for tests/nodes/test_containers.py: Debian, as root, after `make slurm apptainer`.
#   PYXIS_PATH=/its/checkout ENROOT_PATH=/that/of/enroot tests/slurm/pyxis.sh      # makes /opt/xp-pyxis
# `make pyxis` calls it. Both are built by Debian's compiler, enroot's small programs with its libc and libbsd; what enroot makes
# bundles with is left out. tests/slurm/nodes.sh puts the plugin into the Slurm of the two nodes where it is there.
set -euo pipefail
place=/opt/xp-pyxis
image=/opt/xp-apptainer/image
: "${PYXIS_PATH:?a checkout of github.com/NVIDIA/pyxis}" "${ENROOT_PATH:?a checkout of github.com/NVIDIA/enroot}"
[ -e "$place/.done" ] && exit 0
[ -e "$image" ] || { echo "$image is not there: make apptainer" >&2; exit 1; }
rm -rf "$place"
install -d "$place"/{bin,lib/slurm,lib/enroot,build} "$place"/etc/enroot/{environ.d,mounts.d,hooks.d}
apt-get install -y -qq --no-install-recommends libslurm-dev libbsd-dev gcc make libc6-dev parallel jq squashfs-tools uidmap >/dev/null

cp -a "$PYXIS_PATH/." "$place/build/pyxis"
make --silent -C "$place/build/pyxis"
install -m 644 "$place/build/pyxis/spank_pyxis.so" "$place/lib/slurm"

cd "$ENROOT_PATH"
for program in aufs2ovlfs mksquashovlfs mount switchroot nsenter; do
  gcc -std=gnu11 -O2 -D_GNU_SOURCE "bin/enroot-$program.c" -o "$place/bin/enroot-$program" -l:libbsd.a -l:libmd.a
done
version=$(sed -n 's/^VERSION *:= *//p' Makefile)
for file in enroot.in:bin/enroot conf/enroot.conf.in:etc/enroot/enroot.conf; do
  sed -e "s;@sysconfdir@;$place/etc/enroot;" -e "s;@libdir@;$place/lib/enroot;" -e "s;@version@;$version;" "${file%%:*}" \
    >"$place/${file##*:}"
done
chmod 755 "$place/bin/enroot"
install -m 644 src/*.sh "$place/lib/enroot"
install -m 644 conf/environ/10-terminal.env "$place/etc/enroot/environ.d"
install -m 644 conf/mounts/10-system.fstab conf/mounts/20-config.fstab "$place/etc/enroot/mounts.d"
install -m 755 conf/hooks/*.sh "$place/etc/enroot/hooks.d"
# The nodes share their disk, and a container has the same name on each: its place is named by the node's address.
# shellcheck disable=SC2016
for name in DATA_PATH: RUNTIME_PATH:/run CACHE_PATH:/cache; do
  echo "ENROOT_${name%%:*}"' /var/lib/xp-slurm-nodes/enroot-$(hostname -I | cut -d" " -f1)'"${name##*:}"
done >>"$place/etc/enroot/enroot.conf"
mksquashfs "$image" "$place/image.sqsh" -comp gzip -Xcompression-level 1 -quiet -no-progress
rm -r "$place/build"
touch "$place/.done"
