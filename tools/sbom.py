# SPDX-License-Identifier: BSD-3-Clause
"""sbom.py: the software bill of materials of a release, as an SPDX 2.3 document: every file of the source archive with its sums
and licence, every archive and wheel, and the libraries and tools that these need. tools/release.py calls it."""

import hashlib
import re
import subprocess
import tarfile
from datetime import datetime, timezone
from pathlib import Path

LICENCE = "BSD-3-Clause"
PUBLIC_DOMAIN = "LicenseRef-public-domain"
# Files that are not under the tree's licence: examples/data/README.md says where they come from.
OTHERS = {"examples/data/minilm_qkv.safetensors": "Apache-2.0", "examples/data/text.txt": PUBLIC_DOMAIN}
# Libraries that a binary may need, by the beginning of their file names: whose they are, and under which licence.
LIBRARIES = {
    "libgomp.so": ("GNU libgomp", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    "libc.so": ("GNU C library", "LGPL-2.1-or-later"),
    "libm.so": ("GNU C library", "LGPL-2.1-or-later"),
    "ld-linux": ("GNU C library", "LGPL-2.1-or-later"),
}


def identifier(kind, name):
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def sums(data, *algorithms):
    return [{"algorithm": a, "checksumValue": hashlib.new(a.lower(), data).hexdigest()} for a in algorithms]


def files_of(archive):
    """An entry for each file of the source archive, whose names lie in one folder."""
    entries = []
    with tarfile.open(archive) as tar:
        for member in sorted((m for m in tar if m.isfile()), key=lambda m: m.name):
            name = member.name.partition("/")[2]
            data = tar.extractfile(member).read()
            said = re.search(rb"SPDX-License-Identifier: ([\w.-]*\w)", data[:400])
            licence = OTHERS.get(name, LICENCE)
            # Two names may differ in a letter only that identifiers do not have: the sum of the name tells them apart.
            entries.append(
                {
                    "fileName": f"./{name}",
                    "SPDXID": identifier("File", name) + "-" + hashlib.sha1(name.encode()).hexdigest()[:8],
                    "checksums": sums(data, "SHA1", "SHA256"),
                    "licenseConcluded": licence,
                    "licenseInfoInFiles": [said[1].decode() if said else "NOASSERTION"],
                    "copyrightText": "NOASSERTION",
                }
            )
    return entries


def package(identity, name, version, licence, **more):
    return {
        "SPDXID": identity,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        **more,
    }


def needed_by(binary):
    """The libraries that the dynamic section of a binary names."""
    text = subprocess.run(["readelf", "-d", binary], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def document(version, epoch, archive, products, compiler):
    """archive: the source. products: {file: the binaries in it}, in any order. compiler: what it says of itself."""
    files = files_of(archive)
    code = hashlib.sha1("".join(sorted(f["checksums"][0]["checksumValue"] for f in files)).encode()).hexdigest()
    source = package(
        "SPDXRef-Package-strobe",
        "strobe",
        version,
        LICENCE,
        filesAnalyzed=True,
        packageFileName=archive.name,
        packageVerificationCode={"packageVerificationCodeValue": code},
        licenseInfoFromFiles=sorted({f["licenseInfoInFiles"][0] for f in files}),
        checksums=sums(archive.read_bytes(), "SHA256"),
        hasFiles=[f["SPDXID"] for f in files],
    )
    tool = package("SPDXRef-Package-compiler", "C compiler", compiler, "NOASSERTION")
    packages, links = {p["SPDXID"]: p for p in (source, tool)}, [("SPDXRef-DOCUMENT", "DESCRIBES", source["SPDXID"])]
    for product, binaries in sorted(products.items()):
        identity = identifier("Package", product.name)
        packages[identity] = package(
            identity,
            product.name,
            version,
            LICENCE,
            packageFileName=product.name,
            checksums=sums(product.read_bytes(), "SHA256"),
        )
        links += [
            ("SPDXRef-DOCUMENT", "DESCRIBES", identity),
            (identity, "GENERATED_FROM", source["SPDXID"]),
            (tool["SPDXID"], "BUILD_TOOL_OF", identity),
        ]
        for library in sorted(
            {name for binary in binaries for name in needed_by(binary) if not name.startswith("libstrobe")}
        ):
            name, licence = next((v for k, v in LIBRARIES.items() if library.startswith(k)), (library, "NOASSERTION"))
            packages[identifier("Package", name)] = package(identifier("Package", name), name, "NOASSERTION", licence)
            links.append((identity, "DYNAMIC_LINK", identifier("Package", name)))
    own = hashlib.sha256("".join(p["checksums"][0]["checksumValue"] for p in packages.values() if "checksums" in p).encode())
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"strobe-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/strobe-{version}-{own.hexdigest()}",
        "creationInfo": {
            "created": datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: {Path(__file__).name}"],
        },
        "hasExtractedLicensingInfos": [
            {"licenseId": PUBLIC_DOMAIN, "name": "Public domain", "extractedText": "The work is in the public domain."}
        ],
        "packages": sorted(packages.values(), key=lambda p: p["SPDXID"]),
        "files": files,
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in sorted(set(links))
        ],
    }
