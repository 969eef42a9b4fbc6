"""Which files an execution says that it made, changed and removed."""

from __future__ import annotations

import os

from sandbox import SandboxResult


def lists(result):
    return result.files_created, result.files_modified, result.files_deleted


def files_of(box, code):
    result = box.execute(code)
    assert result.success, result.stderr
    return lists(result)


def test_a_new_file_is_created_and_modified(box):
    assert files_of(box, "open('new.txt', 'w').write('x')") == (["new.txt"], ["new.txt"], [])


def test_a_touch_creates(box):
    assert files_of(box, "import pathlib; pathlib.Path('t').touch()") == (["t"], ["t"], [])


def test_writing_an_old_file_modifies_it(box):
    (box.workspace / "old").write_text("1")
    for code in (
        "open('old', 'w').write('2')",
        "open('old', 'a').write('2')",
        "open('old', 'r+').write('3')",
    ):
        assert files_of(box, code) == ([], ["old"], [])


def test_emptying_a_file_modifies_it(box):
    for code in ("open('old', 'w').close()", "import os; os.truncate('old', 1)"):
        (box.workspace / "old").write_text("12")
        assert files_of(box, code) == ([], ["old"], [])


def test_reading_and_a_change_of_times_are_in_no_list(box):
    (box.workspace / "old").write_text("1")
    assert files_of(
        box, "import os; open('old').read(); os.utime('old', (1, 2)); open('old', 'a').close()"
    ) == (
        [],
        [],
        [],
    )


def test_folders_are_in_no_list(box):
    code = "import os; os.makedirs('a/b'); os.rename('a', 'c'); os.mkdir('d'); os.rmdir('d')"
    assert files_of(box, code) == ([], [], [])


def test_removing_an_old_file_deletes_it(box):
    (box.workspace / "old").write_text("1")
    assert files_of(box, "import os; os.remove('old')") == ([], [], ["old"])


def test_a_file_made_and_removed_is_in_no_list(box):
    assert files_of(box, "import os; open('t', 'w').write('x'); os.remove('t')") == ([], [], [])


def test_a_file_that_lives_on_without_its_name_is_in_no_list(box):
    code = "import os; f = open('t', 'w'); os.remove('t'); f.write('x'); f.flush(); f.truncate(9)"
    assert files_of(box, code) == ([], [], [])


def test_an_old_file_written_to_after_its_removal_is_deleted(box):
    (box.workspace / "old").write_text("1")
    code = "import os; f = open('old', 'w'); os.remove('old'); f.write('x'); f.close()"
    assert files_of(box, code) == ([], [], ["old"])


def test_an_old_file_removed_and_made_again_is_modified(box):
    (box.workspace / "old").write_text("1")
    assert files_of(box, "import os; os.remove('old'); open('old', 'w').write('2')") == ([], ["old"], [])


def test_temp_and_replace_modifies(box):
    (box.workspace / "old").write_text("1")
    code = "import os; open('old.tmp', 'w').write('2'); os.replace('old.tmp', 'old')"
    assert files_of(box, code) == ([], ["old"], [])


def test_a_write_to_the_file_that_was_replaced_is_not_reported_of_its_successor(box):
    (box.workspace / "old").write_text("1")
    (box.workspace / "new").write_text("2")
    code = "import os; f = open('old', 'r+'); os.replace('new', 'old'); f.write('lost'); f.close()"
    assert files_of(box, code) == ([], ["old"], ["new"])
    assert (box.workspace / "old").read_text() == "2"


def test_a_rename_creates_its_target_and_deletes_its_source(box):
    (box.workspace / "a").write_text("1")
    assert files_of(box, "import os; os.rename('a', 'b')") == (["b"], ["b"], ["a"])


def test_a_rename_there_and_back_modifies(box):
    (box.workspace / "a").write_text("1")
    assert files_of(box, "import os; os.rename('a', 'b'); os.rename('b', 'a')") == ([], ["a"], [])


def test_a_rename_of_a_new_file_creates_only_its_target(box):
    assert files_of(box, "import os; open('a', 'w').close(); os.rename('a', 'b')") == (["b"], ["b"], [])


def test_a_rename_between_two_names_of_one_file_changes_nothing(box):
    (box.workspace / "a").write_text("1")
    os.link(box.workspace / "a", box.workspace / "b")
    assert files_of(box, "import os; os.rename('a', 'b')") == ([], [], [])
    assert sorted(os.listdir(box.workspace)) == ["a", "b", "user_code.py"]


def test_a_rename_of_a_folder_counts_for_every_file_in_it(box):
    for name in ("x", "sub/y"):
        (box.workspace / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (box.workspace / "d" / name).write_text("1")
    targets = ["e/sub/y", "e/x"]
    assert files_of(box, "import os; os.rename('d', 'e')") == (targets, targets, ["d/sub/y", "d/x"])


def test_a_file_open_in_a_renamed_folder_is_reported_under_its_new_name(box):
    code = "import os; os.mkdir('d'); f = open('d/x', 'w'); os.rename('d', 'e'); f.write('1'); f.close()"
    assert files_of(box, code) == (["e/x"], ["e/x"], [])


def test_a_hard_link_is_created(box):
    (box.workspace / "a").write_text("1")
    assert files_of(box, "import os; os.link('a', 'b')") == (["b"], ["b"], [])


def test_a_symlink_is_created_and_a_write_through_it_modifies_its_target(box):
    (box.workspace / "a").write_text("1")
    assert files_of(box, "import os; os.symlink('a', 'l')") == (["l"], ["l"], [])
    assert files_of(box, "open('l', 'w').write('2')") == ([], ["a"], [])
    assert files_of(box, "import os; os.symlink('fresh', 'm'); open('m', 'w').write('2')") == (
        ["fresh", "m"],
        ["fresh", "m"],
        [],
    )
    assert files_of(box, "import os; os.remove('l')") == ([], [], ["l"])


def test_a_write_through_a_linked_folder_counts_where_the_file_is(box):
    (box.workspace / "real").mkdir()
    code = "import os; os.symlink('real', 'way'); open('way/f', 'w').write('1')"
    assert files_of(box, code) == (["real/f", "way"], ["real/f", "way"], [])


def test_a_write_from_an_open_folder_counts_where_the_file_is(box):
    (box.workspace / "d").mkdir()
    code = """
import os
folder = os.open('d', os.O_RDONLY)
os.close(os.open('f', os.O_WRONLY | os.O_CREAT, dir_fd=folder))
os.mkdir('sub', dir_fd=folder)
os.close(os.open('sub/g', os.O_WRONLY | os.O_CREAT, dir_fd=folder))
os.rename('f', 'sub/../h', src_dir_fd=folder, dst_dir_fd=folder)
"""
    assert files_of(box, code) == (["d/h", "d/sub/g"], ["d/h", "d/sub/g"], [])


def test_paths_in_the_lists_are_plain(box):
    code = """
import os
os.makedirs('a/b'); os.chdir('a')
open('./b/../x', 'w').close()
os.chdir('/app')
open('//app/./a//y', 'w').close()
open('a/é', 'w').close()
"""
    assert files_of(box, code)[0] == ["a/x", "a/y", "a/é"]


def test_the_code_itself_is_in_no_list(box):
    assert files_of(box, "open('user_code.py', 'a').write('#')") == ([], [], [])
    assert files_of(box, "import os; os.remove('user_code.py')") == ([], [], [])


def test_a_file_of_that_name_elsewhere_is_listed(box):
    code = "import os; os.mkdir('d'); open('d/user_code.py', 'w').close()"
    assert files_of(box, code)[0] == ["d/user_code.py"]


def test_what_happens_in_tmp_is_in_no_list(box):
    assert files_of(box, "open('/tmp/x', 'w').write('1'); import os; os.rename('/tmp/x', '/tmp/y')") == (
        [],
        [],
        [],
    )


def test_nothing_is_moved_or_linked_between_tmp_and_the_workspace(box):
    code = """
import os, shutil
open('/tmp/x', 'w').write('1')
for act in (os.rename, os.replace, os.link):
    try:
        act('/tmp/x', '/app/y')
    except OSError as error:
        print(error.strerror)
print(shutil.move('/tmp/x', '/app/z'))
"""
    result = box.execute(code)
    assert result.stdout.splitlines() == ["Cross-device link"] * 3 + ["/app/z"]
    assert lists(result) == (["z"], ["z"], [])


def test_a_failed_execution_has_its_lists_too(box):
    result = box.execute("open('a', 'w').write('x'); 1 / 0")
    assert (result.exit_code, result.files_created) == (1, ["a"])


def test_a_name_that_is_no_utf_8_does_not_spoil_the_result(box):
    folder = os.fsencode(box.workspace) + b"/d"
    os.mkdir(folder)
    with open(folder + b"/\xff\xfe", "wb"):
        pass
    result = box.execute("import os; os.rename('d', 'e')")
    assert result.success
    assert result.files_created == ["e/\ufffd\ufffd"]
    assert SandboxResult.model_validate_json(result.model_dump_json()) == result


def test_a_name_of_the_host_that_is_no_utf8_can_be_used_but_not_made(box):
    (box.workspace / os.fsdecode(b"caf\xe9")).write_text("from the host")
    result = box.execute("""
import os
name = next(name for name in os.listdir('.') if name.startswith('caf'))
print(ascii(name), open(name).read())
open(name, 'a').write('!')
try:
    open(b'new\\xe9', 'w')
except OSError as error:
    print(error.strerror)
""")
    assert result.stdout == "'caf\\udce9' from the host\nIllegal byte sequence\n", result.stderr
    assert (result.files_created, result.files_modified) == ([], ["caf\ufffd"])
