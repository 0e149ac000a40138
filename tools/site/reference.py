# SPDX-License-Identifier: BSD-3-Clause
"""reference.py: pages made of comments and docstrings: a public header, declaration by declaration, and the Python package."""

import ast
import re
import textwrap


def escaped(line):
    """A line of plain text, no character of which Markdown would take for its own."""
    return re.sub(r"([\\`*_<>\[\]|#])", r"\\\1", line)


def markdown(comment):
    """A C comment as Markdown: lines that are set in by four and more are code, those that begin with "- " a list."""
    lines, code, out = textwrap.dedent(comment).strip("\n").splitlines(), False, []
    for line in lines:
        indented = line.startswith("    ")
        if indented and not code:
            out += ["", "```c"]
        if code and line and not indented:
            out += ["```", ""]
            code = False
        code |= indented
        if code:
            out.append(line[4:])
        elif re.fullmatch(r"-+", line):  # under a heading
            out[-1:] = ["", "### " + out[-1], ""]
        else:
            if line.startswith("- ") and out and out[-1] and not out[-1].startswith(("- ", "  ")):
                out.append("")
            mark = re.match(r"(?:- )?", line)[0]
            out.append(mark + escaped(line.removeprefix(mark)))
    return re.sub(r"\n\n+```$", "\n```", "\n".join(out + ["```"] * code), flags=re.M)


def without_frame(comment):
    """The text of a comment without its stars."""
    text = re.sub(r"^/\*+ ?|[ \n]*\*/$", "", comment)
    return re.sub(r"^ \* ?", "", text, flags=re.M)


def of_header(name, text):
    """A page: the comment at the top, then each declaration behind a comment of its own, under the name that it declares."""
    head = re.match(r"/\*.*?\*/", text, flags=re.S)[0]
    head = without_frame(head).partition("\n")[2].lstrip("\n")
    head = re.sub(r"^\S+: ", "", head)
    page = [f"# {name}", markdown(head[0].upper() + head[1:])]
    body = text[text.index('extern "C" {') :]
    body = body[body.index("#endif") + 6 : body.rindex("#ifdef __cplusplus")]
    item = re.compile(
        r"(?P<banner>^/\* -+ (?P<title>[^-].*?) -- \*/$)|(?P<comment>^/\*.*?\*/\n)?(?P<code>^\S.*?;[^\n]*\n(?=\n|\Z))",
        flags=re.S | re.M,
    )
    for match in item.finditer(body):
        if match["banner"]:
            page.append(f"## {match['title'][0].upper()}{match['title'][1:]}")
            continue
        bare = re.sub(r"/\*.*?\*/", "", match["code"], flags=re.S)
        named = re.match(r"(?:typedef )?(?:enum|struct) (strobe_\w+)", bare) or re.search(
            r"\(\*(strobe_\w+)\)\(|\b(strobe_\w+)\(", bare
        )
        title = next(filter(None, named.groups())) if named else "Constants"
        page.append(f"### {escaped(title)}")
        if match["comment"]:
            page.append(markdown(without_frame(match["comment"].strip())))
        page.append(f"```c\n{match['code'].rstrip()}\n```")
    return "\n\n".join(page) + "\n"


def options_of(arguments):
    """Class of python/strobe/_arguments.py -> ["name: type = default", ...], those of its bases first."""
    classes = {node.name: node for node in arguments.body if isinstance(node, ast.ClassDef)}

    def options(name):
        node, found = classes[name], []
        for base in node.bases:
            found += options(base.id) if isinstance(base, ast.Name) and base.id in classes else []
        for entry in node.body:
            if isinstance(entry, ast.AnnAssign) and isinstance(entry.annotation, ast.Subscript):
                kind, default = entry.annotation.slice.elts[:2]
                found.append(f"{entry.target.id}: {ast.unparse(kind)} = {ast.unparse(default)}")
        return found

    return {name: options(name) for name in classes}


def signature(function, options):
    """What a caller writes, one argument a line where they are many."""
    words = [ast.unparse(function.args)] if ast.unparse(function.args) else []
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "takes":
            words = [ast.unparse(a) for a in function.args.args] + ["*", *options[decorator.args[0].id]]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    line = f"{function.name}({', '.join(words)}){returns}"
    if len(line) < 100:
        return line
    if len(words) == 1:
        words = re.split(r", (?=[*\w]+(?::|,|$|=))", words[0])
    return f"{function.name}(\n    " + ",\n    ".join(words) + f",\n){returns}"


def item(match):
    """A parameter, or what is returned or raised, as an item of a list."""
    names, _, kind = match[1].partition(" : ")
    text = " ".join(line.strip() for line in match[2].splitlines())
    return f"- `{names}`{': ' + escaped(kind) if kind else ''}. {escaped(text)}\n".replace(r"\`", "`")


def prose(docstring):
    """A docstring in NumPy's style as Markdown: what is described by lines set in becomes a list."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", docstring or "").replace("``", "`")
    text = re.sub(r"^(\w[\w ]*)\n-{3,}$", r"**\1**\n", text, flags=re.M)
    text = re.sub(r"^(=+ +=+)\n(.*?)\n\1$", lambda m: f"```text\n{m[2]}\n```", text, flags=re.S | re.M)
    text = re.sub(
        r"::\n\n((?:    .*\n?|\n)+)", lambda m: ":\n\n```python\n" + textwrap.dedent(m[1]).strip() + "\n```\n\n", text
    )
    text = re.sub(r"^>>> .*\n?(?:^\S.*\n?)*", lambda m: f"```python\n{m[0].rstrip()}\n```\n", text, flags=re.M)
    pieces = re.split(r"(^```.*?^```)", text, flags=re.S | re.M)
    pieces[::2] = (re.sub(r"^(\S.*)\n((?: {4}.*\n?)+)", item, piece, flags=re.M) for piece in pieces[::2])
    return "".join(pieces)


def of_package(folder):
    """A page: each module with its docstring, then what its __all__ names, with signatures and docstrings."""
    options = options_of(ast.parse((folder / "_arguments.py").read_text(encoding="utf-8")))
    page = ["# Python"]
    for name, start, parts in (
        ("strobe", "__init__.py", folder.glob("_*.py")),
        ("strobe.torch", "torch/__init__.py", (folder / "torch").glob("_*.py")),
        ("strobe.jax", "jax/__init__.py", (folder / "jax").glob("_*.py")),
        ("strobe.transformers", "transformers.py", [folder / "transformers.py"]),
    ):
        module = ast.parse((folder / start).read_text(encoding="utf-8"))
        names = {
            x.value
            for node in ast.walk(module)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for x in node.value.elts
        }
        page += [f"## {name}", prose(ast.get_docstring(module))]
        for part in sorted(parts):
            for node in ast.parse(part.read_text(encoding="utf-8")).body:
                if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name not in names:
                    continue
                page.append(f"### {name}.{escaped(node.name)}")
                if isinstance(node, ast.FunctionDef):
                    page.append(f"```python\n{name}.{signature(node, options)}\n```")
                page.append(prose(ast.get_docstring(node)))
                names.discard(node.name)
        missing = names - {"Error"}
        assert not missing, f"{name}: no definition of {missing} was found"
    return "\n\n".join(page) + "\n"
