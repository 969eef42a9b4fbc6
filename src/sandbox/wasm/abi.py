"""The numbers and layouts of WASI preview 1."""

from __future__ import annotations

import errno
import stat
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import os

# Error numbers
SUCCESS: Final = 0
EACCES: Final = 2
EBADF: Final = 8
EBUSY: Final = 10
EEXIST: Final = 20
EFAULT: Final = 21
EILSEQ: Final = 25
EINVAL: Final = 28
EIO: Final = 29
EISDIR: Final = 31
ELOOP: Final = 32
EMFILE: Final = 33
ENAMETOOLONG: Final = 37
ENOENT: Final = 44
ENOMEM: Final = 48
ENOSPC: Final = 51
ENOTDIR: Final = 54
EPERM: Final = 63
ESPIPE: Final = 70
EXDEV: Final = 75
# What the host's own calls answer on files and folders; anything else is an EIO to a guest.
_OF_THE_HOST: Final = {
    errno.EACCES: EACCES,
    errno.EAGAIN: 6,
    errno.EBADF: EBADF,
    errno.EBUSY: EBUSY,
    errno.EDQUOT: 19,
    errno.EEXIST: EEXIST,
    errno.EFBIG: 22,
    errno.EILSEQ: EILSEQ,
    errno.EINTR: 27,
    errno.EINVAL: EINVAL,
    errno.EISDIR: EISDIR,
    errno.ELOOP: ELOOP,
    errno.EMFILE: EMFILE,
    errno.EMLINK: 34,
    errno.ENAMETOOLONG: ENAMETOOLONG,
    errno.ENFILE: 41,
    errno.ENODEV: 43,
    errno.ENOENT: ENOENT,
    errno.ENOMEM: ENOMEM,
    errno.ENOSPC: ENOSPC,
    errno.ENOSYS: 52,
    errno.ENOTDIR: ENOTDIR,
    errno.ENOTEMPTY: 55,
    errno.ENOTSUP: 58,
    errno.ENXIO: 60,
    errno.EOVERFLOW: 61,
    errno.EPERM: EPERM,
    errno.EROFS: 69,
    errno.ESPIPE: ESPIPE,
    errno.ESTALE: 72,
    errno.ETXTBSY: 74,
    errno.EXDEV: EXDEV,
}

# File types
UNKNOWN: Final = 0
DIRECTORY: Final = 3
REGULAR_FILE: Final = 4
SYMBOLIC_LINK: Final = 7

# path_open flags, rights, and fd flags
O_CREAT: Final = 1
O_DIRECTORY: Final = 2
O_EXCL: Final = 4
O_TRUNC: Final = 8
ALL_RIGHTS: Final = (1 << 30) - 1
RIGHT_FD_READ: Final = 1 << 1
RIGHT_FD_WRITE: Final = 1 << 6
LOOKUP_FOLLOW: Final = 1
FD_APPEND: Final = 1
FD_FLAGS: Final = 31  # append, data sync, no block, read sync, sync

# Which times to set, and which of them to now
SET_ACCESSED: Final = 1
SET_ACCESSED_NOW: Final = 2
SET_MODIFIED: Final = 4
SET_MODIFIED_NOW: Final = 8

# poll_oneoff
EVENT_CLOCK: Final = 0
EVENT_FD_READ: Final = 1
EVENT_FD_WRITE: Final = 2
CLOCK_REALTIME: Final = 0
CLOCK_MONOTONIC: Final = 1
CLOCK_IS_ABSOLUTE: Final = 1

MOST_I64: Final = (1 << 63) - 1
MOST_U64: Final = (1 << 64) - 1

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
IOVEC = struct.Struct("<II")  # address, length
DIRENT = struct.Struct("<QQIB3x")  # next cookie, inode, length of the name, type
FDSTAT = struct.Struct("<BxH4xQQ")  # type, flags, rights, rights of what is opened in it
PRESTAT = struct.Struct("<B3xI")  # 0 for a folder, length of its name
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


def error_number(error: OSError) -> int:
    """What a guest hears of an error of the host."""
    return _OF_THE_HOST.get(error.errno or 0, EIO)


_KINDS = {stat.S_IFDIR: DIRECTORY, stat.S_IFREG: REGULAR_FILE, stat.S_IFLNK: SYMBOLIC_LINK}


def kind_of(info: os.stat_result) -> int:
    """The file type that a guest sees."""
    return _KINDS.get(stat.S_IFMT(info.st_mode), UNKNOWN)


def filestat(info: os.stat_result) -> tuple[int, ...]:
    """The fields of FILESTAT."""
    times = (info.st_atime_ns & MOST_U64, info.st_mtime_ns & MOST_U64, info.st_ctime_ns & MOST_U64)
    return info.st_dev, info.st_ino, kind_of(info), info.st_nlink, info.st_size, *times
