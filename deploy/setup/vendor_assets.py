#!/usr/bin/env python3
"""Fetch the browser files that the pages need into dashboard/static/vendor, each checked against its digest.

    python3 deploy/setup/vendor_assets.py           fetch and write what differs
    python3 deploy/setup/vendor_assets.py --check   only compare what is there, fetch nothing

The files are committed, so nobody needs npm to run Relume. To move to a new version: change it here, run this, put the
digests that it prints into `ASSETS`, run it again and look at the pages.
"""

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).resolve().parents[2] / "dashboard" / "static" / "vendor"
FETCH_LIMIT_S = 120


@dataclass(frozen=True)
class Asset:
    """One file of one npm package. `member`: its path in the package; `digest`: sha256 of the file itself."""

    package: str
    version: str
    member: str
    digest: str

    @property
    def target(self) -> Path:
        return VENDOR / f"{self.package}-{self.version}" / Path(self.member).name


ASSETS = (
    Asset(
        "plotly.js-basic-dist-min",
        "4.1.1",
        "package/plotly-basic.min.js",
        "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba",
    ),
    Asset(
        "plotly.js-basic-dist-min",
        "4.1.1",
        "package/LICENSE",
        "8c45d9eaf50c2f72dd9c7ab9ef440788ba58a3538484b5c51c1f17d5128752e7",
    ),
)


def main(argv: list[str] | None = None) -> int:
    """0: every file is there and right. 1: one is not, or could not be fetched; the reason is on stderr."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="compare only, fetch nothing")
    options = arguments.parse_args(argv)
    wrong = [asset for asset in ASSETS if not _right(asset)]
    if options.check:
        for asset in wrong:
            print(f"{asset.target}: missing or altered", file=sys.stderr)
        return 1 if wrong else 0
    try:
        for package, version in sorted({(a.package, a.version) for a in wrong}):
            _fetch(package, version, [a for a in wrong if (a.package, a.version) == (package, version)])
    except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError, ValueError) as error:
        print(f"vendor_assets: {error}", file=sys.stderr)
        return 1
    return 0


def _right(asset: Asset) -> bool:
    return asset.target.is_file() and hashlib.sha256(asset.target.read_bytes()).hexdigest() == asset.digest


def _fetch(package: str, version: str, assets: list[Asset]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package}@{version}"]
        subprocess.run(command, cwd=folder, check=True, timeout=FETCH_LIMIT_S, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            for asset in assets:
                _write(asset, tar)


def _write(asset: Asset, tar: tarfile.TarFile) -> None:
    member = tar.extractfile(asset.member)
    if member is None:
        raise ValueError(f"{asset.member} of {asset.package} is no plain file")
    data = member.read()
    found = hashlib.sha256(data).hexdigest()
    if found != asset.digest:
        raise ValueError(f"{asset.package}@{asset.version} {asset.member}: sha256 {found}, expected {asset.digest}")
    asset.target.parent.mkdir(parents=True, exist_ok=True)
    asset.target.write_bytes(data)
    print(f"wrote {asset.target} ({len(data)} bytes)")


if __name__ == "__main__":
    sys.exit(main())
