#!/usr/bin/env bash
# Packs built programs for one architecture: `build.sh BIN OUT`. Needs no root, no network and no container daemon; the same
# programs and the same commit result in the same bytes.
#
# BIN has lisa-producer, lisa-manager and lisa-consumer, statically linked. If BIN has these as well, they are packed:
#   completions/ and man/      as the verbs `completions` and `man` write them; else the programs are run to write them
#   third-party-licenses.*     the licenses of the libraries in the programs
#   *.cdx.json                 bills of materials (CycloneDX); they are copied to OUT
#   symbols/                   the symbols of the programs, for crash reports; they are packed into a tarball of their own
#
# OUT gets a tarball, a Debian package, an RPM package if rpmbuild is there, an OCI image archive, and SHA256SUMS, which is signed if
# DIST_SIGNING_KEY names a key: see sign.sh.
set -euo pipefail

if [ $# -ne 2 ]; then
  echo "usage: $0 BIN OUT" >&2
  exit 2
fi
repository=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
rm -f "$out"/{lisa-*,lisa_*,*.cdx.json,SHA256SUMS*}
programs=(lisa-producer lisa-manager lisa-consumer)
for program in "${programs[@]}"; do
  [ -x "$bin/$program" ] || { echo "$bin has no program $program" >&2 && exit 1; }
done

cd "$repository"
others=$(git ls-files --others -- config shared/docs 2>/dev/null || true)
[ -z "$others" ] || { echo "not committed, and would be packed: $others" >&2 && exit 1; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
# The time of everything in the packages, and the revision in the image: those of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
revision=${DIST_REVISION:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
homepage=$(python3 config/package/release.py show repository)
maintainer=${DIST_MAINTAINER:-"The Lisa authors <lisa@localhost.localdomain>"}

# The field e_machine of the ELF header.
case $(od -An -tx2 -j18 -N2 "$bin/lisa-manager") in
  *003e) arch=x86_64 debian=amd64 oci=amd64 ;;
  *00b7) arch=aarch64 debian=arm64 oci=arm64 ;;
  *) echo "$bin/lisa-manager: neither x86_64 nor aarch64" >&2 && exit 1 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Packs a folder's contents: no times, owners or permissions of this machine. The GNU format, because pax headers contain a process
# ID.
pack() { # folder, names…
  tar -C "$1" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    -c "${@:2}"
}

# Completions and man pages, as below /usr/share.
share() { # folder, folder of zsh
  local program
  mkdir -p "$1"/{bash-completion/completions,fish/vendor_completions.d,"$2",man/man1}
  for program in "${programs[@]}"; do
    cp "$work/generated/completions/$program.bash" "$1/bash-completion/completions/$program"
    cp "$work/generated/completions/$program.fish" "$1/fish/vendor_completions.d/$program.fish"
    cp "$work/generated/completions/$program.zsh" "$1/$2/_$program"
  done
  cp "$work"/generated/man/*.1 "$1/man/man1/"
}

mkdir -p "$work/generated"/{completions,man}
if [ -d "$bin/completions" ] && [ -d "$bin/man" ]; then
  cp -r "$bin"/{completions,man} "$work/generated/"
else
  "$bin/lisa-manager" --version >/dev/null || { echo "$bin needs completions/ and man/, because this machine cannot run its programs" >&2 && exit 1; }
  for program in "${programs[@]}"; do
    for shell in bash fish zsh; do
      "$bin/$program" completions "$shell" >"$work/generated/completions/$program.$shell"
    done
    "$bin/$program" man "$work/generated/man"
  done
fi
licenses=()
for file in "$bin"/third-party-licenses.*; do
  if [ -e "$file" ]; then licenses+=("$file"); fi
done

# The tarball. `cp -r bin share /usr/local` installs it.
tarball() {
  local name=lisa-$version-$arch-linux program
  mkdir -p "$work/tar/$name/bin"
  for program in "${programs[@]}"; do cp "$bin/$program" "$work/tar/$name/bin/"; done
  share "$work/tar/$name/share" zsh/site-functions
  python3 config/package/links.py into "$work/tar/$name" README.md CHANGELOG.md SECURITY.md LICENSE shared/docs \
    config/*.{toml,yaml} config/lisa.schema.json config/redis.conf config/{grafana,helm,kubernetes,prometheus,systemd}
  if [ ${#licenses[@]} -gt 0 ]; then cp "${licenses[@]}" "$work/tar/$name/"; fi
  pack "$work/tar" "$name" | gzip -6n >"$out/$name.tar.gz"
}

# Stages the files that the .deb and the .rpm install.
installed() { # root, folder of zsh
  local root=$1 doc=$1/usr/share/doc/lisa program unit
  mkdir -p "$root"/{etc/lisa,usr/bin,usr/lib/systemd/system} "$doc/examples"
  for program in "${programs[@]}"; do cp "$bin/$program" "$root/usr/bin/"; done
  share "$root/usr/share" "$2"
  gzip -9n "$root"/usr/share/man/man1/*.1
  # An absolute path, so that a program in /usr/local/bin does not take the place of the installed one.
  for unit in config/systemd/*.service; do
    sed 's|^ExecStart=|&/usr/bin/|' "$unit" >"$root/usr/lib/systemd/system/${unit##*/}"
  done
  # Short, and the same in each release: dpkg asks what to do about a changed file if its default changes, too.
  cp config/package/lisa.toml "$root/etc/lisa/lisa.toml"
  cp -r config/*.toml config/combined.yaml config/lisa.schema.json config/redis.conf config/{grafana,prometheus} "$doc/examples/"
  cp config/systemd/*.conf "$doc/examples/"
  python3 config/package/links.py into "$doc" README.md shared/docs
}

# The Debian package. A pre-release sorts before its release: 0.2.0~rc.1.
debian() {
  local root=$work/deb package=${version/-/\~}-1 doc expat size
  installed "$root" zsh/vendor-completions
  doc=$root/usr/share/doc/lisa
  mkdir -p "$root"/{DEBIAN,usr/share/lintian/overrides}
  gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
  printf 'lisa (%s) unstable; urgency=medium\n\n  * Release %s.\n\n -- %s  %s\n' "$package" "$version" "$maintainer" \
    "$(date -uR -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.Debian.gz"
  # The text of the MIT License between the two rules of LICENSE, as a field of a control file.
  expat=$(awk '/^=+$/ { part++; next } part == 1' LICENSE | sed -e '/^MIT License$/d' -e '/^Copyright/d' -e 's/^$/./' -e 's/^/ /' |
    sed -e '/[^ .]/,$!d' | tac | sed -e '/[^ .]/,$!d' | tac)
  EXPAT=$expat awk '/^@EXPAT@$/ { print ENVIRON["EXPAT"]; next } 1' config/package/deb/copyright >"$doc/copyright"
  if [ ${#licenses[@]} -gt 0 ]; then cp "${licenses[@]}" "$doc/"; fi
  cp config/package/deb/lintian-overrides "$root/usr/share/lintian/overrides/lisa"
  cp config/package/deb/{conffiles,postinst,prerm,postrm} "$root/DEBIAN/"
  size=$(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%s\n' |
    awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
  sed -e "s/@VERSION@/$package/" -e "s/@ARCH@/$debian/" -e "s/@MAINTAINER@/$maintainer/" -e "s/@SIZE@/$size/" -e "s|@HOMEPAGE@|$homepage|" -e '/^Homepage: $/d' \
    config/package/deb/control >"$root/DEBIAN/control"
  (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
  chmod -R u=rwX,go=rX "$root"
  # One thread, because the number of threads changes the compressed bytes.
  dpkg-deb --root-owner-group -Zxz -z2 --threads-max=1 --build "$root" "$out/lisa_${package}_$debian.deb" >/dev/null
}

# The RPM package.
rpm_package() {
  local root=$work/rpm/staged
  installed "$root" zsh/site-functions
  mkdir -p "$root/usr/share/licenses/lisa" "$work/rpm/db"
  cp LICENSE "${licenses[@]}" "$root/usr/share/licenses/lisa/"
  cp CHANGELOG.md "$root/usr/share/doc/lisa/"
  chmod -R u=rwX,go=rX "$root"
  # Nothing of this machine in the package: its name, its time, the number of its cores; and nothing changes the programs.
  rpmbuild -bb --quiet --nodeps --target "$arch-linux" --define "package_version ${version/-/\~}" --define "staged $root" --define "homepage $homepage%{nil}" \
    --define "_topdir $work/rpm" --define "_dbpath $work/rpm/db" --define "_rpmdir $work/rpm" --define "_rpmfilename package.rpm" \
    --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
    --define "source_date_epoch_from_changelog 0" --define "clamp_mtime_to_source_date_epoch 1" \
    --define "_build_id_links none" --define "debug_package %{nil}" --define "__os_install_post %{nil}" \
    --define "_binary_payload w2.xzdio" --define "_prefix /usr" --define "_docdir /usr/share/doc" \
    config/package/lisa.spec >"$work/rpm/log" 2>&1 || { cat "$work/rpm/log" >&2 && return 1; }
  cp "$work/rpm/package.rpm" "$out/lisa-${version/-/\~}-1.$arch.rpm"
}

# The image: the three programs, the certificate authorities of Mozilla, a user and /tmp.
image() {
  local root=$work/image
  mkdir -p "$root"/{etc/ssl/certs,etc/lisa,tmp,usr/bin,usr/share/licenses/lisa}
  for program in "${programs[@]}"; do cp "$bin/$program" "$root/usr/bin/"; done
  # Without the authorities that this machine adds, such as that of a proxy: they are not for other machines.
  if [ -n "${DIST_CA_FILE:-}" ]; then cat "$DIST_CA_FILE"; else cat /usr/share/ca-certificates/mozilla/*.crt; fi \
    >"$root/etc/ssl/certs/ca-certificates.crt"
  echo 'lisa:x:65532:65532:Lisa:/:/sbin/nologin' >"$root/etc/passwd"
  echo 'lisa:x:65532:' >"$root/etc/group"
  cp LICENSE "${licenses[@]}" "$root/usr/share/licenses/lisa/"
  pack "$root" --exclude=./tmp . >"$work/layer.tar"
  python3 config/package/image.py "$work/layer.tar" "$out/lisa-$version-$arch-image.tar" \
    --name "lisa:$version" --architecture "$oci" --version "$version" --revision "$revision" --source "$homepage"
}

symbols() { pack "$bin" symbols | gzip -6n >"$out/lisa-$version-$arch-symbols.tar.gz"; }

# Compression takes most of the time. A higher level takes four times as long for a seventh less.
jobs=() kinds=(tarball debian image)
if command -v rpmbuild >/dev/null; then
  kinds+=(rpm_package)
else
  echo "no rpmbuild (Debian's package rpm): no RPM package" >&2
fi
if [ -d "$bin/symbols" ]; then kinds+=(symbols); fi
for kind in "${kinds[@]}"; do
  (set -e; "$kind") &
  jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done

for file in "$bin"/*.cdx.json; do
  if [ -e "$file" ]; then cp "$file" "$out/"; fi
done
cd "$out"
find . -maxdepth 1 -type f -printf '%f\n' | sort | xargs sha256sum >"$work/sums"
cp "$work/sums" SHA256SUMS
if [ -n "${DIST_SIGNING_KEY:-}" ]; then (cd "$repository" && bash config/package/sign.sh "$out"); fi
ls -l
