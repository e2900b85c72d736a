#!/usr/bin/env bash
# A real apptainer and an image without a hub, for tests/nodes/test_containers.py: Debian, as root.
#   tests/slurm/apptainer.sh      # makes /opt/xp-apptainer: bin/apptainer, image/ (Debian trixie with its own Python), image.sif
# `make apptainer` calls it. apptainer is Debian's package of sid. Its libc is newer than that of the stable releases, so the
# programs get sid's loader and libraries beside them. Nothing outside that directory is changed but the tools that make it.
set -euo pipefail
place=/opt/xp-apptainer
mirror=${XP_DEBIAN:-http://deb.debian.org/debian}
[ -e "$place/.done" ] && exit 0
rm -rf "$place"
mkdir -p "$place/apt/lists/partial" "$place/apt/cache/archives/partial" "$place/debs"
apt-get install -y -qq --no-install-recommends debootstrap patchelf squashfs-tools uidmap >/dev/null

echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$place/apt/sources.list"
sid=(-o "Dir::Etc::SourceList=$place/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$place/apt/lists"
  -o "Dir::Cache=$place/apt/cache" -o APT::Sandbox::User=root)
apt-get "${sid[@]}" -qq update
(cd "$place/debs" && apt-get "${sid[@]}" -qq download apptainer libc6 libseccomp2 libsqlite3-0)
for package in "$place"/debs/lib*.deb; do dpkg -x "$package" "$place/libraries"; done
dpkg -x "$place"/debs/apptainer_*.deb "$place/program"
cp -a "$place/libraries/usr/lib/x86_64-linux-gnu" "$place/lib"
cp -a "$place/program/usr/lib/x86_64-linux-gnu" "$place/lib/"
cp -a "$place/program/usr/bin" "$place/program/etc" "$place/program/var" "$place/"
# apptainer looks for both beside its own directory, and below that of its starter.
ln -s ../etc "$place/lib/etc"
ln -s ../var "$place/lib/var"
for program in "$place/bin/apptainer" "$place/lib/x86_64-linux-gnu/apptainer/bin/starter"; do
  patchelf --set-interpreter "$place/lib/ld-linux-x86-64.so.2" "$program"
  patchelf --force-rpath --set-rpath "$place/lib" "$program"
done
for library in libsqlite3.so.0 libseccomp.so.2; do patchelf --force-rpath --set-rpath "$place/lib" "$(readlink -f "$place/lib/$library")"; done
# Root keeps every capability by default, which fails where this machine's root has not got all of them.
sed -i 's/^root default capabilities = .*/root default capabilities = no/' "$place/etc/apptainer/apptainer.conf"
rm -r "$place/apt" "$place/debs" "$place/libraries" "$place/program"

debootstrap --variant=minbase --include=python3 trixie "$place/image" "$mirror" >/dev/null
rm -rf "$place/image/var/cache/apt" "$place/image/var/lib/apt/lists"
"$place/bin/apptainer" --quiet build --mksquashfs-args "-comp gzip -Xcompression-level 1" "$place/image.sif" "$place/image"
touch "$place/.done"
