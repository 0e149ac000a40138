#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""make_layout.py HEADER ... > layout.c: writes the test that pins the layout of the public structures, as the header has them
now. Run it again only to add what was appended: a line that changes is a broken promise to every program already built."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = """\
/* SPDX-License-Identifier: BSD-3-Clause
 *
 * layout.c: the layout of every public structure on LP64, pinned. Compiling is the test. Fields are only ever appended, so a
 * line of this file never changes, but for the size of a structure with struct_size, which grows: GROWS has the present one,
 * so that no field is forgotten here. FIXED: one that stands inside others and may not. make_layout.py writes the file. */
#include "strobe/strobe_append.h"
#include "strobe/strobe_dist.h"
#include "strobe/strobe_mask_lists.h"
#include "strobe/strobe_quantise.h"
#include "strobe/strobe_score.h"

#define GROWS(type, bytes)                _Static_assert(sizeof(type) == (bytes), #type " has another size than here")
#define FIXED(type, bytes)                _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define HERE(type, field, offset, bytes)  (offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (bytes))
#define FIELD(type, field, offset, bytes) _Static_assert(HERE(type, field, offset, bytes), #type "." #field " has moved")
#define VALUE(name, value)                _Static_assert((name) == (value), #name " has another value")

#if defined(__LP64__)
"""


def structures(text):
    """Yields (type, [field, ...]) for each structure, in order."""
    for name, body in re.findall(r"struct (\w+) \{(.*?)\n\}", text, re.S):
        fields = []
        for declaration in filter(None, (d.strip() for d in body.split(";"))):
            function = re.search(r"\(\*(\w+)\)", declaration)
            if function:
                fields.append(function.group(1))
                continue
            fields += [re.search(r"(\w+)\s*(\[\d+\])?$", part.strip()).group(1) for part in declaration.split(",")]
        yield name, fields


def main():
    headers = [Path(header) for header in sys.argv[1:]]
    text = re.sub(r"/\*.*?\*/", "", "".join(header.read_text() for header in headers), flags=re.S)
    prints = []
    for name, fields in structures(text):
        kind = "GROWS" if fields[0] == "struct_size" else "FIXED"
        prints.append(f'printf("\\n{kind}({name}, %zu);\\n", sizeof({name}));')
        prints += [f'printf("FIELD({name}, {f}, %zu, %zu);\\n", offsetof({name}, {f}), sizeof((({name} *)0)->{f}));'
                   for f in fields]
    prints.append('puts("");')
    prints += [f'printf("VALUE({v}, %d);\\n", (int){v});' for v in re.findall(r"\b(STROBE_[A-Z0-9_]+) = \d", text)]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "print.c"), Path(folder, "print")
        includes = "".join(f'#include "{header.resolve()}"\n' for header in headers)
        source.write_text(f'#include <stdio.h>\n{includes}int main(void) {{ {" ".join(prints)} }}\n')
        subprocess.run(["cc", "-I", headers[0].parent.parent, "-o", program, source], check=True)
        table = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    print(HEAD + table + "\n#endif\n\nint main(void) { return 0; }")


main()
