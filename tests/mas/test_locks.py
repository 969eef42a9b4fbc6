from __future__ import annotations

import os
import threading

import pytest

from mas.locks import lock_file, lock_folder, try_lock_folder


def test_a_folder_is_held_by_one_at_a_time(tmp_path):
    with lock_folder(tmp_path), try_lock_folder(tmp_path) as held:
        assert not held
    with try_lock_folder(tmp_path) as held:
        assert held


def test_a_folder_that_goes_while_somebody_waits_is_not_found(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    seen = []

    def wait():
        try:
            with lock_folder(folder):
                seen.append("held")
        except FileNotFoundError:
            seen.append("gone")

    with lock_folder(folder):
        waiting = threading.Thread(target=wait)
        waiting.start()
        folder.rmdir()
    waiting.join()
    assert seen == ["gone"]


def test_a_folder_that_is_not_there_cannot_be_held(tmp_path):
    with try_lock_folder(tmp_path / "none") as held:
        assert not held
    with pytest.raises(FileNotFoundError), lock_folder(tmp_path / "none"):
        pass


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with lock_folder(tmp_path):
            os.write(writer, b"x")
            os.kill(os.getpid(), 9)
    os.read(reader, 1)
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
    with try_lock_folder(tmp_path) as held:
        assert held


def test_a_file_that_was_replaced_while_waiting_is_locked_anew(tmp_path):
    path = tmp_path / "lock"
    order = []

    def wait():
        with lock_file(path) as descriptor:
            order.append(os.fstat(descriptor).st_ino == path.stat().st_ino)

    with lock_file(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        path.unlink()
        path.touch()
    waiting.join()
    assert order == [True]
