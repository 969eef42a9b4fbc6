"""The numbers and layouts of WASI preview 1."""

from __future__ import annotations

import struct
from typing import Final

# Error numbers
SUCCESS: Final = 0
EACCES: Final = 2
EBADF: Final = 8
EFAULT: Final = 21
EINVAL: Final = 28
EIO: Final = 29
EMFILE: Final = 33
ENAMETOOLONG: Final = 37
ENOENT: Final = 44
ENOSPC: Final = 51
EPERM: Final = 63
EXDEV: Final = 75

# File types
DIRECTORY: Final = 3
REGULAR_FILE: Final = 4
SYMBOLIC_LINK: Final = 7

# path_open flags, rights, and fd flags
O_CREAT: Final = 1
O_DIRECTORY: Final = 2
O_TRUNC: Final = 8
RIGHT_FD_WRITE: Final = 1 << 6
LOOKUP_FOLLOW: Final = 1
FD_APPEND: Final = 1

# poll_oneoff
EVENT_CLOCK: Final = 0
EVENT_FD_READ: Final = 1
EVENT_FD_WRITE: Final = 2
CLOCK_MONOTONIC: Final = 1
CLOCK_IS_ABSOLUTE: Final = 1

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
IOVEC = struct.Struct("<II")  # address, length
DIRENT = struct.Struct("<QQIB3x")  # next cookie, inode, length of the name, type
FILESTAT = struct.Struct("<QQB7xQQQQQ")  # device, inode, type, links, size, three times
SUBSCRIPTION = struct.Struct("<QB7xI4xQQH6x")  # user data, kind, clock or fd, timeout, precision, flags
EVENT = struct.Struct("<QHB5xQH6x")  # user data, error, kind, bytes, flags

# The parameters of each function that a guest may import: i is an i32, q an i64. All but
# proc_exit answer one i32.
WASI: Final = "wasi_snapshot_preview1"
SIGNATURES: Final = {
    "args_get": "ii",
    "args_sizes_get": "ii",
    "clock_res_get": "ii",
    "clock_time_get": "iqi",
    "environ_get": "ii",
    "environ_sizes_get": "ii",
    "fd_advise": "iqqi",
    "fd_close": "i",
    "fd_datasync": "i",
    "fd_fdstat_get": "ii",
    "fd_fdstat_set_flags": "ii",
    "fd_filestat_get": "ii",
    "fd_filestat_set_size": "iq",
    "fd_filestat_set_times": "iqqi",
    "fd_pread": "iiiqi",
    "fd_prestat_dir_name": "iii",
    "fd_prestat_get": "ii",
    "fd_pwrite": "iiiqi",
    "fd_read": "iiii",
    "fd_readdir": "iiiqi",
    "fd_seek": "iqii",
    "fd_sync": "i",
    "fd_tell": "ii",
    "fd_write": "iiii",
    "path_create_directory": "iii",
    "path_filestat_get": "iiiii",
    "path_filestat_set_times": "iiiiqqi",
    "path_link": "iiiiiii",
    "path_open": "iiiiiqqii",
    "path_readlink": "iiiiii",
    "path_remove_directory": "iii",
    "path_rename": "iiiiii",
    "path_symlink": "iiiii",
    "path_unlink_file": "iii",
    "poll_oneoff": "iiii",
    "proc_exit": "i",
    "random_get": "ii",
    "sched_yield": "",
    "sock_accept": "iii",
    "sock_recv": "iiiiii",
    "sock_send": "iiiii",
    "sock_shutdown": "ii",
}


def argument_layout(signature: str) -> struct.Struct:
    """How to read a raw array of arguments, each in 16 bytes, as unsigned numbers."""
    return struct.Struct("<" + "".join("I12x" if kind == "i" else "Q8x" for kind in signature))
