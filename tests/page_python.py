"""`python` in the shell blocks of pages: the same command, in a fork of a warm process, with small
models under the published names.

    page_python.py FOLDER CHANGES FLAGS [-m module | script.py | -c code | -] arguments

FOLDER holds the files in place of downloads, CHANGES is a JSON of what is changed in each row,
FLAGS are appended to the arguments. If FLAGS begin with a name, such as `finetune --steps=1`, they
are appended to that command or script alone.
"""

import os
import shlex
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import warm  # noqa: E402

_RUN = """
import json, os, pathlib, runpy, sys
_, folder, changes, kind, *arguments = sys.argv
import stand_ins
stand_ins.install(pathlib.Path(folder), json.loads(changes))
if kind == "-m":
    sys.orig_argv = [sys.executable, "-m", *arguments]
    sys.argv, sys.path[0] = arguments, os.getcwd()
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
elif kind == "-c":
    sys.argv = ["-c", *arguments[1:]]
    exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
else:
    sys.argv, sys.path[0] = [kind, *arguments], os.path.dirname(os.path.realpath(kind))
    runpy.run_path(kind, run_name="__main__")
"""

if __name__ == "__main__":
    folder, changes, flags, *command = sys.argv[1:]
    if command[0] not in ("-m", "-c") and not command[0].endswith(".py"):
        sys.exit(f"Not a command of a page: python {shlex.join(command)}")
    flags = shlex.split(flags)
    if flags and not flags[0].startswith("-"):
        name, *flags = flags
        if name not in [os.path.basename(word).removesuffix(".py") for word in command[:3]]:
            flags = []
    code = f"import sys; sys.path.insert(1, {os.path.dirname(os.path.abspath(__file__))!r})\n{_RUN}"
    process = warm.Popen([sys.executable, "-c", code, folder, changes, *command, *flags])
    sys.exit(process.wait())
