#!/usr/bin/env python3
"""Writes an image of one layer as an archive that Docker, Podman, containerd and Skopeo can load.

It is an OCI image layout, and has the `manifest.json` of `docker save` for Docker before version 25. Written here and not with a
builder of images, because those need root or user namespaces, put the time of the build into the archive, or cannot set a health
check, which the OCI specification does not have but Docker reads.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import tarfile

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("layer", help="an uncompressed tar archive")
options.add_argument("archive")
options.add_argument("--name", required=True, help="NAME:TAG")
options.add_argument("--architecture", required=True)
options.add_argument("--version", required=True)
options.add_argument("--revision", required=True)
options.add_argument("--source", help="the address of the repository")
arguments = options.parse_args()

epoch = int(os.environ["SOURCE_DATE_EPOCH"])
created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
labels = {
    "org.opencontainers.image.title": "Lisa",
    "org.opencontainers.image.description": "Delayed message queue on Redis Streams: lisa-producer, lisa-manager, lisa-consumer",
    "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
    "org.opencontainers.image.version": arguments.version,
    "org.opencontainers.image.revision": arguments.revision,
    "org.opencontainers.image.created": created,
}
if arguments.source:
    labels["org.opencontainers.image.source"] = arguments.source
files = {}


def entry(name, size, mode=0o644, type=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime, info.type = size, mode, epoch, type
    return info


def blob(kind, data):
    """Adds a blob, and returns its descriptor."""
    digest = hashlib.sha256(data).hexdigest()
    files[f"blobs/sha256/{digest}"] = data
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def text(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


# /tmp is open to every user, which the modes of the other files are not.
content = io.BytesIO(open(arguments.layer, "rb").read())
with tarfile.open(fileobj=content, mode="a", format=tarfile.GNU_FORMAT) as layer:
    layer.addfile(entry("./tmp", 0, 0o1777, tarfile.DIRTYPE))
tar = content.getvalue()

config = {
    "User": "65532:65532",
    "Env": ["PATH=/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
    "Cmd": ["lisa-manager", "--help"],
    "WorkingDir": "/",
    "StopSignal": "SIGTERM",
    "ExposedPorts": {f"{port}/tcp": {} for port in (7811, 7812, 7813, 7814, 7816)},
    "Labels": labels,
    "Healthcheck": {
        "Test": ["CMD", "lisa-manager", "healthcheck"],
        **{key: seconds * 1_000_000_000 for key, seconds in {"Interval": 10, "Timeout": 5, "StartPeriod": 10}.items()},
        "Retries": 3,
    },
}
config_blob = blob(
    "config.v1+json",
    text(
        {
            "architecture": arguments.architecture,
            "os": "linux",
            "created": created,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}"]},
            "history": [{"created": created, "created_by": "config/package/image.py"}],
        }
    ),
)
layer_blob = blob("layer.v1.tar+gzip", gzip.compress(tar, 6, mtime=0))
manifest = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "config": config_blob,
    "layers": [layer_blob],
    "annotations": labels,
}
manifest_blob = blob("manifest.v1+json", text(manifest))
repository, tag = arguments.name.rsplit(":", 1)
manifest_blob["platform"] = {"architecture": arguments.architecture, "os": "linux"}
manifest_blob["annotations"] = {
    "org.opencontainers.image.ref.name": tag,
    "io.containerd.image.name": f"docker.io/library/{repository}:{tag}",
}
files["oci-layout"] = text({"imageLayoutVersion": "1.0.0"})
files["index.json"] = text(
    {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest_blob]}
)
path = {name: "blobs/" + descriptor["digest"].replace(":", "/") for name, descriptor in (("c", config_blob), ("l", layer_blob))}
files["manifest.json"] = text([{"Config": path["c"], "RepoTags": [arguments.name], "Layers": [path["l"]]}])

with tarfile.open(arguments.archive, "w", format=tarfile.GNU_FORMAT) as archive:
    for folder in ("blobs", "blobs/sha256"):
        archive.addfile(entry(folder, 0, 0o755, tarfile.DIRTYPE))
    for name in sorted(files):
        archive.addfile(entry(name, len(files[name])), io.BytesIO(files[name]))
