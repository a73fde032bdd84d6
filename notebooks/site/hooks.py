"""What MkDocs shows beside `pages/`: notebooks, the pages of the studies, and pictures.

These files stay where they are, so that their links work in the repository too. In the site each has the
path that it has in the repository; only `notebooks/pages/` is left out of the path of a page, and a notebook
`notebooks/NAME.py` becomes `notebooks/NAME.md`. Links between them are followed. A link to a file that the
site does not show, such as a program, becomes the name of that file in the repository.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
PAGES = "notebooks/pages/"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"^(```.*?^```|~~~.*?^~~~)", re.M | re.S)
NOTEBOOK = re.compile(r"^notebooks/(\d\d_\w+)\.py$")


def on_files(files, config):
    """Add the notebooks, the pages of the studies and every picture that a page shows."""
    texts = {
        file.src_uri: Path(file.abs_src_path).read_text(encoding="utf-8")
        for file in files
        if file.is_documentation_page()
    }
    sources = {PAGES + uri: text for uri, text in texts.items()}
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.py")):
        page, pictures = _notebook(path, ROOT / config.extra["executed"])
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    pages = [
        ROOT / "numpyro_bnn" / "ARCHITECTURE.md",
        ROOT / "benchmarks" / "README.md",
        *sorted((ROOT / "benchmarks").glob("*/*.md")),
    ]
    for path in pages:
        name = path.relative_to(ROOT).as_posix()
        sources[name] = path.read_text(encoding="utf-8")
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for source, text in sources.items():
        for picture in re.findall(r"\]\(([^)\s]+\.(?:png|svg))\)", text):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(source), picture))
            if files.get_file_from_path(name) is None and (ROOT / name).is_file():
                files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links of the repository to where their targets are in the site."""
    here = page.file.src_uri
    source = here if (ROOT / here).is_file() or here.startswith("notebooks/") else PAGES + here

    def moved(match):
        picture, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / name).exists():
            # MkDocs says that it is missing.
            return match[0]
        shown = NOTEBOOK.sub(r"notebooks/\1.md", name.removeprefix(PAGES))
        if files.get_file_from_path(shown) is None:
            return text if name in text else f"{text} (`{name}`)"
        relative = posixpath.relpath(shown, posixpath.dirname(here) or ".")
        return f"{picture}[{text}]({relative}{anchor or ''})"

    parts = CODE.split(markdown)
    text = "".join(part if CODE.match(part) else LINK.sub(moved, part) for part in parts)
    # No line breaks between a number and a per cent sign or its error.
    return re.sub(r"(?<=\d) (?=[%±])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", text)


def _notebook(path, folder):
    """A notebook as Markdown, and its pictures by name: with its results where it was executed."""
    executed = folder / f"{path.stem}.ipynb"
    if executed.is_file():
        return _executed(path, executed)
    cells = re.split(r"^# %%(.*)\n", path.read_text(encoding="utf-8"), flags=re.M)[1:]
    shown = []
    for options, text in zip(cells[::2], cells[1::2], strict=True):
        if "[markdown]" in options:
            shown.append(re.sub(r"^# ?", "", text, flags=re.M).strip())
        elif text.strip():
            shown.append(f"```python\n{text.strip()}\n```")
    title, *rest = shown
    where = f"*This page shows the source of the notebook `notebooks/{path.name}`, without its results.*"
    first, _, after = title.partition("\n")
    return "\n\n".join([first, where, after.strip(), *rest]), {}


def _executed(path, executed):
    import jupytext
    from nbconvert import MarkdownExporter

    made, now = (jupytext.read(file).cells for file in (executed, path))
    if [cell.source.strip() for cell in made] != [cell.source.strip() for cell in now]:
        raise PluginError(
            f"{executed.name} was made from another version of {path.name}. Delete it, or make it anew: "
            f"jupytext --to notebook --execute notebooks/{path.name}"
        )
    resources = {"output_files_dir": f"{path.stem}_files", "unique_key": path.stem}
    page, resources = MarkdownExporter().from_filename(str(executed), resources=resources)
    pictures = {
        name.replace(os.sep, "/"): content for name, content in resources["outputs"].items()
    }
    return page, pictures
