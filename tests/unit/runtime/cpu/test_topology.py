"""Cores, caches and NUMA nodes as the kernel describes them, and the ranks' parts of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.runtime.cpu.topology import Core, Domain, cores, cpus_of_rank


def machine(root: Path, *, sockets: int, cores_per_l3: int, l3s: int, threads: int, has_nodes: bool = True) -> Path:
    """Files of a machine with hyper-threads numbered as Linux does: first those of all cores, then the second ones."""
    per_socket = cores_per_l3 * l3s
    total = sockets * per_socket
    for cpu in range(total * threads):
        core, directory = cpu % total, root / f"cpu/cpu{cpu}"
        first = core // cores_per_l3 * cores_per_l3
        siblings = [core + total * thread for thread in range(threads)]
        shared = [f"{first + total * thread}-{first + cores_per_l3 - 1 + total * thread}" for thread in range(threads)]
        write(directory / "topology/thread_siblings_list", ",".join(map(str, siblings)))
        write(directory / "topology/physical_package_id", str(core // per_socket))
        for index, (level, sharing) in enumerate(((1, siblings), (1, siblings), (2, siblings), (3, shared))):
            write(directory / f"cache/index{index}/level", str(level))
            write(directory / f"cache/index{index}/shared_cpu_list", ",".join(map(str, sharing)))
    for socket in range(sockets) if has_nodes else ():
        first = socket * per_socket
        ranges = [f"{first + total * thread}-{first + per_socket - 1 + total * thread}" for thread in range(threads)]
        write(root / f"node/node{socket}/cpulist", ",".join(ranges))
    write(root / "node/online", f"0-{sockets - 1}")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Two sockets of 4 cores with 2 hyper-threads each, and one L3 cache a socket."""
    return machine(tmp_path, sockets=2, cores_per_l3=4, l3s=1, threads=2)


def test_hyper_threads_are_one_core(two_sockets: Path) -> None:
    found = cores(range(16), two_sockets)
    assert found[0] == Core(Domain(0, 0), (0, 8))
    assert found[-1] == Core(Domain(1, 4), (7, 15))
    assert [core.domain.node for core in found] == [0] * 4 + [1] * 4


def test_only_allowed_cpus_count(two_sockets: Path) -> None:
    assert [core.cpus for core in cores({1, 6, 9, 14, 15}, two_sockets)] == [(1, 9), (6, 14), (15,)]


def test_two_ranks_have_a_socket_each(two_sockets: Path) -> None:
    found = cores(range(16), two_sockets)
    assert cpus_of_rank(found, 0, 2) == {0, 1, 2, 3, 8, 9, 10, 11}
    assert cpus_of_rank(found, 1, 2) == {4, 5, 6, 7, 12, 13, 14, 15}


def test_four_ranks_share_sockets_in_pairs(two_sockets: Path) -> None:
    found = cores(range(16), two_sockets)
    parts = [cpus_of_rank(found, rank, 4) for rank in range(4)]
    assert parts[0] == parts[1] == {0, 1, 2, 3, 8, 9, 10, 11}
    assert parts[2] == parts[3] == {4, 5, 6, 7, 12, 13, 14, 15}


def test_a_rank_whose_share_spans_both_sockets_is_on_both(two_sockets: Path) -> None:
    found = cores(range(16), two_sockets)
    assert [len(cpus_of_rank(found, rank, 3)) for rank in range(3)] == [8, 16, 8]
    assert cpus_of_rank(found, 0, 1) == set(range(16))


def test_ranks_of_one_socket_have_l3_caches_of_their_own(tmp_path: Path) -> None:
    root = machine(tmp_path, sockets=1, cores_per_l3=2, l3s=4, threads=1)
    found = cores(range(8), root)
    assert [cpus_of_rank(found, rank, 2) for rank in range(2)] == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert [cpus_of_rank(found, rank, 4) for rank in range(4)] == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


def test_without_numa_nodes_sockets_are_apart(tmp_path: Path) -> None:
    root = machine(tmp_path, sockets=2, cores_per_l3=2, l3s=1, threads=1, has_nodes=False)
    assert cpus_of_rank(cores(range(4), root), 1, 2) == {2, 3}


def test_numa_nodes_of_one_socket_and_one_l3_are_apart(tmp_path: Path) -> None:
    root = machine(tmp_path, sockets=1, cores_per_l3=4, l3s=1, threads=1)
    write(root / "node/node0/cpulist", "0,2")
    write(root / "node/node1/cpulist", "1,3")
    write(root / "node/node2/cpulist", "")  # memory alone
    assert cpus_of_rank(cores(range(4), root), 0, 2) == {0, 2}
    assert cpus_of_rank(cores(range(4), root), 1, 2) == {1, 3}


def test_a_machine_that_hides_its_topology_has_one_domain(tmp_path: Path) -> None:
    found = cores({2, 3, 5}, tmp_path)
    assert [core.cpus for core in found] == [(2,), (3,), (5,)]
    assert cpus_of_rank(found, 0, 2) == cpus_of_rank(found, 1, 2) == {2, 3, 5}


def test_more_ranks_than_cores_share_them(two_sockets: Path) -> None:
    found = cores({0, 4}, two_sockets)
    assert [cpus_of_rank(found, rank, 4) for rank in range(4)] == [{0}, {0}, {4}, {4}]


def test_unreadable_files_count_as_none(two_sockets: Path) -> None:
    write(two_sockets / "cpu/cpu0/topology/thread_siblings_list", "nonsense")
    write(two_sockets / "cpu/cpu0/cache/index3/level", "")
    assert cores({0, 8}, two_sockets)[0].cpus == (0,)
