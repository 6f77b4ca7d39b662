"""Writes chunks as vLLM's file store does: ROOT/model/abc/de_r0/HASH.bin, by temp + rename.

Arguments: ROOT COUNT BYTES [flat]. With `flat` all lie in ROOT/model.
"""

import hashlib
import os
import sys


def chunk(root, number, size, flat=False):
    """Path and bytes of a chunk; both depend on the number alone. No two bodies are equal."""
    name = hashlib.sha256(b"%d" % number).hexdigest()
    below = [] if flat else [name[:3], name[3:5] + "_r0"]
    path = os.path.join(root, "model", *below, name + ".bin")
    return path, (name.encode() * (size // 64 + 1))[:size]


def main():
    root, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for number in range(count):
        path, body = chunk(root, number, size, "flat" in sys.argv[4:])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.tmp{os.getpid()}"
        fd = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        if os.write(fd, body) != size:
            sys.exit(f"{temporary}: short write")
        os.close(fd)
        os.rename(temporary, path)


if __name__ == "__main__":
    main()
