"""What the fuzzer of files does to a file. Not a program.

An edit takes a file and a source of chance, changes the file and returns in a few words what it did. Those of DAMAGE
do what disks, editors and people do to any file; those of PLACE put something else where it was; and `forge` changes
what a file of perdure's or of an image set says, with the right checksums, as somebody would who knows how they are
made.
"""

import csv
import gzip
import io
import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.torch
import scipy.io
import tomli_w
import torch
from finished_runs import rewrite_record
from forgery import forge as forge_checkpoint
from forgery import tensor_sum
from image_files import idx
from PIL import Image
from safetensors import safe_open

from perdure.data.readers.idx import read_idx
from perdure.files import parse_toml
from perdure.lab import index, store

Edit = Callable[[Path, Random], str]
DEEP = "nested deeply"  # stands for what json.dumps could not write
HEAD = 2000  # bytes in which headers are


# --- damage ---


def _place(content: bytes, chance: Random) -> int:
    """Anywhere, but as often as not in the beginning, which says what the rest is."""
    return chance.randrange(min(len(content), HEAD) if chance.random() < 0.5 else len(content))


def flip_bits(path: Path, chance: Random) -> str:
    content = bytearray(path.read_bytes() or b"\0")
    places = [_place(content, chance) for _ in range(chance.choice([1, 1, 1, 2, 8, 64]))]
    for place in places:
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return f"{len(places)} bits flipped, the first in byte {places[0]}"


def cut(path: Path, chance: Random) -> str:
    content = path.read_bytes()
    length = chance.choice([0, 1, len(content) // 2, max(len(content) - 1, 0), _place(content or b"\0", chance)])
    path.write_bytes(content[:length])
    return f"cut to {length} bytes"


def extend(path: Path, chance: Random) -> str:
    more = chance.choice([b"\n", b"\0", b"x", b"{}", b"\0" * 4096, chance.randbytes(1000)])
    path.write_bytes(path.read_bytes() + more)
    return f"{len(more)} bytes more"


def repeat_block(path: Path, chance: Random) -> str:
    content = path.read_bytes() or b"\0"
    first = _place(content, chance)
    last = first + chance.choice([1, 16, 512, len(content)])
    path.write_bytes(content[:last] + content[first:last] + content[last:])
    return f"bytes {first} to {last} twice"


def zero_block(path: Path, chance: Random) -> str:
    content = bytearray(path.read_bytes() or b"\0")
    first = chance.choice([0, _place(content, chance)])
    last = min(first + chance.choice([1, 16, 512, len(content)]), len(content))
    content[first:last] = bytes(last - first)
    path.write_bytes(content)
    return f"zeros in bytes {first} to {last}"


def overwrite(path: Path, chance: Random) -> str:
    content = chance.choice([b"<html>404</html>\n", b"\xff\xfe", b"[]", b"null", b"\x80\x05.", b"\x1f\x8b\x08\0"])
    path.write_bytes(content)
    return f"{content!r} instead"


DAMAGE: tuple[Edit, ...] = (flip_bits, flip_bits, cut, extend, repeat_block, zero_block, overwrite)


# --- something else in its place ---


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name} that was here"))
    else:
        path.unlink()


def gone(path: Path, chance: Random) -> str:  # noqa: ARG001
    _remove(path)
    return "gone"


def folder(path: Path, chance: Random) -> str:
    _remove(path)
    path.mkdir()
    if inside := chance.random() < 0.5:
        (path / "file").write_bytes(b"something")
    return "a folder" if inside else "an empty folder"


def plain_file(path: Path, chance: Random) -> str:
    _remove(path)
    path.write_bytes(chance.choice([b"", b"something\n"]))
    return "a plain file"


def pipe(path: Path, chance: Random) -> str:  # noqa: ARG001
    _remove(path)
    os.mkfifo(path)
    return "a pipe"


def link(path: Path, chance: Random) -> str:
    of_folder = path.is_dir()  # a link to another folder would be as good a place for runs
    _remove(path)
    where = ["/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "nowhere", path.name]
    path.symlink_to(to := chance.choice(where if of_folder else [*where, "/", ".."]))
    return f"a link to {to}"


def too_large(path: Path, chance: Random) -> str:
    if path.is_dir():
        return plain_file(path, chance)
    size = chance.choice([2**27, 2**32, 2**40])
    os.truncate(path, size)  # takes no room on the disk
    return f"extended to {size} bytes"


PLACE: tuple[Edit, ...] = (gone, folder, plain_file, pipe, link, link, too_large)


# --- content with the right checksums ---


def odd(chance: Random) -> Any:
    """A value that is hardly ever meant."""
    numbers = [
        0,
        -1,
        1,
        2,
        1.5,
        2**31,
        2**63,
        2**64,
        -(2**63),
        10**400,
        1e308,
        1e-308,
        -0.0,
        float("nan"),
        float("inf"),
    ]
    texts = ["", "x", "none", "\ud800", "two\nlines", "\x1b[2J", "x" * 100_000, "../../../mine.txt", "/etc/passwd", "٣"]
    nests = [[], {}, [[]], [None], {"a": 1}, {"": ""}, [1.0, [2.0]], nested(40), nested(70), DEEP]
    return deepcopy(chance.choice([None, True, False, *numbers, *texts, *nests]))


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


def edit_tree(content: Any, chance: Random) -> tuple[Any, str]:
    """The same tables and lists with one thing changed, and what that was."""
    content = deepcopy(content)
    places = list(_places(content))
    if not places or chance.random() < 0.03:
        made = odd(chance)
        return made, f"all of it {made!r:.60}"
    parent, key, name = chance.choice(places)
    kind = chance.choice(["value", "value", "value", "gone", "more", "renamed", "near"])
    if kind == "gone":
        del parent[key]
    elif kind == "more" and isinstance(parent, list):
        parent.insert(key, deepcopy(parent[key]))
    elif kind == "more":
        parent[chance.choice(["color", "", "a.b", "\ud800", "__class__", "x" * 6000])] = odd(chance)
    elif kind == "renamed" and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
    elif kind == "near" and isinstance(parent[key], int | float):
        parent[key] = chance.choice([parent[key] + 1, parent[key] - 1, -parent[key], float(parent[key]), 1000])
    else:
        kind, parent[key] = "value", odd(chance)
    return content, f"{name}: {kind}" + (f" {parent[key]!r:.60}" if kind in ("value", "near") else "")


def _places(content: Any, name: str = "") -> Any:
    """All (table or list, key, name) in a tree."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield content, key, f"{name}.{key}" if name else str(key)
        yield from _places(value, f"{name}.{key}" if name else str(key))


def as_json(content: Any) -> str:
    return json.dumps(content).replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)


def forge_record(path: Path, chance: Random) -> str:
    record, about = edit_tree(json.loads(path.read_bytes()), chance)
    if isinstance(record, dict) and chance.random() < 0.95:
        record["check"] = store._check(record)
    path.write_text(as_json(record))
    return about


def forge_json(path: Path, chance: Random) -> str:
    content, about = edit_tree(json.loads(path.read_bytes()), chance)
    if isinstance(content, dict) and "check" in content:
        content["check"] = store._check(content)
    path.write_text(as_json(content))
    return about


def forge_lines(path: Path, chance: Random) -> str:
    lines, about = edit_tree([json.loads(line) for line in path.read_bytes().splitlines()], chance)
    path.write_text("".join(as_json(line) + "\n" for line in (lines if isinstance(lines, list) else [lines])))
    return about


def forge_index(path: Path, chance: Random) -> str:
    content, about = edit_tree(json.loads(path.read_bytes())["index"], chance)
    body = as_json(content).encode()
    path.write_bytes(index._HEAD % zlib.crc32(body) + body + b"}\n")
    return about


def forge_toml(path: Path, chance: Random) -> str:
    tricks = {
        "deep lists": b"a = " + b"[" * 100_000,
        "deep tables": b"a = " + b"{a = " * 5000,
        "dotted": b".".join([b"a"] * 5000) + b" = 1",
        "twice": path.read_bytes() + b"\n" + path.read_bytes(),
        "not UTF-8": path.read_bytes() + b'about = "\xff"\n',
        "a date": path.read_bytes().replace(b"[1]", b"[1979-05-27]"),
        "long": b"#" * 2**19,
    }
    if chance.random() < 0.1:
        name = chance.choice(list(tricks))
        path.write_bytes(tricks[name])
        return name
    content, about = edit_tree(parse_toml(path.read_bytes()), chance)
    text = tomli_w.dumps(_for_toml(content if isinstance(content, dict) else {"methods": content}))
    path.write_bytes(text.replace(json.dumps(DEEP), "[" * 5000 + "]" * 5000).encode(errors="surrogatepass"))
    return about


def _for_toml(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _for_toml(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_for_toml(value) for value in content]
    return datetime(2026, 1, 1, tzinfo=UTC) if content is None else content


# --- tensors ---

DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row": lambda t: t.reshape(1, -1)[:1] if t.ndim < 2 else t[:1],
    "a row less": lambda t: t[:-1] if t.ndim else t[None],
    "a row more": lambda t: torch.cat([t, t[:1]]) if t.ndim else t[None],
    "a column less": lambda t: t[..., :-1] if t.ndim else t[None],
    "a column more": lambda t: torch.cat([t, t[..., :1]], -1) if t.ndim else t[None],
    "transposed": lambda t: t.T if t.ndim == 2 else t[None],
    "an axis more": lambda t: t[None],
    "flat": lambda t: t.reshape(-1),
    "no rows": lambda t: t[:0] if t.ndim else t[None][:0],
    "no columns": lambda t: t[..., :0] if t.ndim else t[None][:0],
    "a single number": lambda t: t.reshape(-1)[:1].sum(),
}
VALUES = (float("nan"), float("inf"), 3e38, 1e30, 1e4, -1, 0, 10**9)


def edit_tensors(tensors: dict[str, torch.Tensor], chance: Random) -> str:
    """Change one of them, or its name."""
    memory = [name for name in tensors if not name.startswith(("net.", "best_weights/", "momentum/"))]
    name = chance.choice(memory if memory and chance.random() < 0.7 else list(tensors))
    tensor, kind = (
        tensors[name],
        chance.choice(["shape", "shape", "dtype", "values", "values", "gone", "name", "other"]),
    )
    if kind == "shape":
        kind = chance.choice(list(SHAPES))
        tensors[name] = SHAPES[kind](tensor).contiguous().clone()
    elif kind == "dtype":
        dtype = chance.choice([one for one in DTYPES if one != tensor.dtype])
        tensors[name], kind = tensor.to(dtype), str(dtype)
    elif kind == "values":
        value = chance.choice(VALUES)
        whole = chance.random() < 0.5
        if not tensor.dtype.is_floating_point:
            value = {True: 1, False: 2**40}[whole] if value != value or abs(value) > 2**60 else int(value)
        flat = tensor.clone().reshape(-1)
        flat[: None if whole else 1] = torch.tensor(value).to(tensor.dtype)
        tensors[name], kind = flat.reshape(tensor.shape), f"{'all' if whole else 'one'} {value}"
    elif kind == "gone":
        del tensors[name]
    elif kind == "name":
        new = chance.choice([f"{name}x", name.rpartition(".")[0] or "x", f"{name}/0", "memory.", "x", name.upper()])
        tensors[new], kind = tensors.pop(name), f"named {new}"
    else:
        other = chance.choice(list(tensors))
        tensors[name], tensors[other], kind = tensors[other].clone(), tensor.clone(), f"exchanged with {other}"
    return f"{name}: {kind}"


def forge_tensors(path: Path, chance: Random) -> str:
    """A checkpoint, a model or a snapshot: tensors or what the header says of them."""
    about = ""

    def change(facts: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        nonlocal about
        if chance.random() < 0.6:
            about = edit_tensors(tensors, chance)
            return
        content, about = edit_tree({name: value for name, value in facts.items() if name != "sums"}, chance)
        facts.clear()
        facts.update(content if isinstance(content, dict) else {"raw": as_json(content)})
        if DEEP in facts.values():
            facts["raw"] = as_json(facts)

    forge_checkpoint(path, change)
    return about


def forge_container(path: Path, chance: Random) -> str:
    """The header of safetensors itself: names, shapes, types and places of tensors, whose bytes stay the same."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    if chance.random() < 0.5 and names:
        name = chance.choice(names)
        if chance.random() < 0.5:
            header[name]["dtype"] = chance.choice(["I32", "U32", "F16", "BF16", "F64", "I64", "BOOL", "C64", "F8_E5M2"])
            about = f"{name}: {header[name]['dtype']}"
        else:
            header[name]["shape"] = chance.choice([header[name]["shape"][::-1], [1, *header[name]["shape"]], [-1], []])
            about = f"{name}: {header[name]['shape']}"
    else:
        header, about = edit_tree(header, chance)
    text = as_json(header).encode()
    size = chance.choice([len(text)] * 8 + [len(text) + 1, 0, 2**40, 2**64 - 1])
    path.write_bytes(struct.pack("<Q", size) + text + data)
    return f"header of {size} bytes, {about}"


def forge_arrays(path: Path, chance: Random) -> str:
    """The arrays of a probe."""
    tensors = safetensors.torch.load_file(path)
    about = edit_tensors(tensors, chance)
    safetensors.torch.save_file(tensors, path)
    return about


def forge_copy(path: Path, chance: Random) -> str:
    """A decoded copy of image files."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 — not a dictionary
    if chance.random() < 0.5:
        about = edit_tensors(tensors, chance)
        metadata["sums"] = json.dumps({name: tensor_sum(tensor) for name, tensor in tensors.items()})
    else:
        facts, about = edit_tree(json.loads(metadata["facts"]), chance)
        metadata["facts"] = as_json(facts)
    safetensors.torch.save_file(tensors, path, metadata)
    return about


# --- image sets ---


def forge_idx(path: Path, chance: Random) -> str:
    packed = path.suffix == ".gz"
    content = bytearray(idx(read_idx(path)))
    place = 4 + 4 * chance.randrange(content[3])
    size = chance.choice([0, 1, 2, 27, 2**16, 2**31, 2**32 - 1])
    kind = chance.choice(["size", "axes", "labels", "type"])
    if kind == "size":
        content[place : place + 4] = struct.pack(">I", size)
    elif kind == "axes":
        content[3] = chance.choice([0, 1, 2, 4, 255])
    elif kind == "labels":
        content[-1] = chance.choice([10, 255])
    else:
        content[2] = chance.choice([0, 9, 13])
    path.write_bytes(gzip.compress(content) if packed else content)
    return kind


def edit_array(array: np.ndarray, chance: Random) -> tuple[np.ndarray, str]:
    kind = chance.choice(["empty", "flat", "less", "axis", "f8", "i8", "nan", "negative", "bool", "complex", "text"])
    made = {
        "empty": lambda: array[:0],
        "flat": lambda: array.reshape(-1),
        "less": lambda: array[:-1],
        "axis": lambda: array[None],
        "f8": lambda: array.astype("f8"),
        "i8": lambda: array.astype("i8"),
        "nan": lambda: array * np.nan,
        "negative": lambda: -array.astype("i8") - 1,
        "bool": lambda: array > 0,
        "complex": lambda: array * 1j,
        "text": lambda: array.astype(str),
    }[kind]()
    return made, kind


def forge_pickle(path: Path, chance: Random) -> str:
    content = pickle.loads(path.read_bytes(), encoding="bytes")  # written by this program
    key = chance.choice(list(content))
    kind = chance.choice(["value", "value", "array", "array", "gone", "key", "all"])
    if kind == "array" and (found := np.asarray(content[key])).dtype.kind in "iu" and found.ndim:  # not of names
        content[key], kind = edit_array(found, chance)
    elif kind in ("value", "array"):
        content[key] = value = chance.choice([odd(chance), [odd(chance)] * 10, (1, 2), b"\xff", {1: 2}, 1j, 2**200])
        kind = f"{value!r:.40}"
    elif kind == "gone":
        del content[key]
    elif kind == "key":
        content[chance.choice([1, None, b"", "\ud800", (1, 2)])] = content.pop(key)
    else:
        content = chance.choice([[], None, [content], "x", b"x" * 1000])
    protocol = chance.randrange(6)
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return f"{key!r}: {kind}, protocol {protocol}"


def forge_mat(path: Path, chance: Random) -> str:
    content = {name: array for name, array in scipy.io.loadmat(path).items() if not name.startswith("__")}
    name = chance.choice(list(content))
    content[name], kind = edit_array(content[name], chance)
    if chance.random() < 0.2:
        content.pop(name)
        kind = "gone"
    scipy.io.savemat(path, content or {"a": 1}, do_compression=chance.random() < 0.5)
    return f"{name}: {kind}"


def forge_table(path: Path, chance: Random) -> str:
    rows = list(csv.reader(path.read_text().splitlines()))
    row = chance.randrange(len(rows))
    kind = chance.choice(["cell", "gone", "twice", "wide", "narrow", "quote", "zero"])
    if kind == "cell":
        names = ["../../mine.txt", "/etc/passwd", "", "x" * 5000, "n01532829", "two\nlines", "=1+1"]
        rows[row][chance.randrange(len(rows[row]))] = chance.choice(names)
    elif kind == "gone":
        del rows[row]
    elif kind == "twice":
        rows.insert(row, rows[row])
    elif kind == "wide":
        rows[row].append("more")
    elif kind == "narrow":
        del rows[row][-1:]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    end = {"quote": '"' + "x" * 200_000, "zero": "\0\n"}.get(kind, "")
    path.write_text(text.getvalue() + end)
    return f"row {row}: {kind}"


SIZES = ((0, 8), (1, 1), (2**16, 2**16), (2**31 - 1, 1), (20_000, 20_000), (4096, 4096))
FORMATS = ("JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF", "EPS", "PDF", "ICO", "TGA", "JPEG2000")
MODES = dict.fromkeys(("1", "L", "LA", "P", "RGBA", "I;16"), "PNG")
MODES |= {"CMYK": "JPEG", "YCbCr": "JPEG", "I": "TIFF", "F": "TIFF", "LAB": "TIFF"}
CHUNKS = (b"tRNS", b"iCCP", b"eXIf", b"tEXt", b"zTXt", b"gAMA", b"acTL", b"IDAT")
BEGINNINGS = (b"%!PS\n", b"<svg/>", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"P6 99999 99999 255\n", b"BM")


def forge_image(path: Path, chance: Random) -> str:
    """A PNG of other sizes or with other chunks, with the right checksums, or another image altogether."""
    content, made = path.read_bytes(), io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        kind = chance.choice(["size", "chunk", "mode", "format", "resized", "animation", "beginning"])
        if kind == "size":
            about = chance.choice(SIZES)
            made.write(content[:8] + _chunk(b"IHDR" + struct.pack(">II", *about) + content[24:29]) + content[33:])
        elif kind == "chunk":
            about = chance.choice(CHUNKS)
            body = chance.choice([b"", b"\xff" * 40, b"x" * 2000, zlib.compress(bytes(10_000_000))])
            made.write(content[:33] + _chunk(about + body) + content[33:])
        elif kind == "mode":
            about = chance.choice(list(MODES))
            Image.new(about, image.size).save(made, MODES[about])
        elif kind == "format":
            about = chance.choice(FORMATS)
            image.convert("RGB").save(made, about)
        elif kind == "resized":
            about = chance.choice([(1, 1), (5000, 1), (1, 5000)])
            image.resize(about).save(made, "PNG")
        elif kind == "animation":
            about = 6
            image.convert("P").save(made, "GIF", save_all=True, append_images=[image.convert("P")] * (about - 1))
        else:
            about = chance.choice(BEGINNINGS)
            made.write(about)
    path.write_bytes(made.getvalue())
    return f"{kind} {about}"


def _chunk(body: bytes) -> bytes:
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def forge_text(path: Path, chance: Random) -> str:
    kind = chance.choice(["a line less", "a line more", "\0", "not UTF-8", "one long line", "markup"])
    text = path.read_bytes()
    made = {
        "a line less": text.partition(b"\n")[2],
        "a line more": text + b"more\n",
        "\0": text.replace(b"thing_1", b"\0"),
        "not UTF-8": text.replace(b"thing_1", b"\xff\xfe"),
        "one long line": b"x" * 10**6,
        "markup": text.replace(b"thing_1", b"[red]\x1b[2J"),
    }
    path.write_bytes(made[kind])
    return kind


# --- which is for which ---

BY_NAME: dict[str, tuple[Edit, ...]] = {
    "record.json": (forge_record,),
    ".index.json": (forge_index,),
    "epochs.jsonl": (forge_lines,),
}
BY_ENDING: dict[str, tuple[Edit, ...]] = {
    ".json": (forge_json,),
    ".toml": (forge_toml,),
    ".mat": (forge_mat,),
    ".csv": (forge_table,),
    ".png": (forge_image,),
    ".txt": (forge_text,),
    ".pkl": (forge_pickle,),
    "ubyte": (forge_idx,),
    ".gz": (forge_idx,),
}
PICKLES = ("data_batch", "test_batch", "batches.meta", "train", "test", "meta")


def _edits(path: Path) -> tuple[Edit, ...]:
    if path.suffix == ".safetensors":
        kinds = {"probes": forge_arrays, "compared": forge_arrays, "decoded": forge_copy}
        return kinds.get(path.parent.name, forge_tensors), forge_container
    if path.name in BY_NAME:
        return BY_NAME[path.name]
    if found := [edits for ending, edits in BY_ENDING.items() if path.name.endswith(ending)]:
        return found[0]
    return (forge_pickle,) if path.name.startswith(PICKLES) and not path.suffix else ()


def forge(path: Path, chance: Random) -> str:
    """Change what a file says; the checksums that others hold of it are put right, too."""
    edits = _edits(path)
    if not edits:
        return flip_bits(path, chance)
    about = chance.choice(edits)(path, chance)
    record, figures = path.parent / "record.json", path.with_suffix(".json")
    if path.name in store.FILES and record.exists():
        sums = json.loads(record.read_bytes())["files"]
        rewrite_record(path.parent, files={**sums, path.name: store.file_sum(path)})
    elif path.suffix == ".safetensors" and figures.exists():
        content = {**json.loads(figures.read_bytes()), "arrays_sum": store.file_sum(path)}
        if "check" in content:
            content["check"] = store._check(content)
        figures.write_text(as_json(content))
    return about
