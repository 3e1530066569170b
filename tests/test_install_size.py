"""The count of an install's files by package."""

from tools.install_size import sizes


def test_libraries_count_with_their_package(tmp_path):
    for name, size in (("a/x.py", 3), ("a.libs/y.so", 5), ("b.py", 7), ("a/__pycache__/x.pyc", 11)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    packages, bytecode = sizes(tmp_path)
    assert packages == {"a": 19, "b.py": 7}
    assert bytecode == 11
