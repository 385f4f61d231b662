"""The network of this machine: its interfaces, what its own name stands for, and variables that name an interface."""

import ipaddress
import platform
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from horovod_study.cluster.doctor.finding import Area, Here
from horovod_study.cluster.doctor.machine import infiniband
from horovod_study.text.words import plural

NAMING = (
    *("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"),
)
"""Variables by which a site or a user says which interface to use."""


def interfaces(addresses: Mapping[str, Sequence[Any]], stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the interfaces that are up and have an IPv4 address, from what psutil knows.

    name, address, network ("10.77.0.0/24"), loopback, speed_mbits (0: unknown), mtu.
    """
    found = []
    for name in sorted(addresses):
        state = stats.get(name)
        for each in addresses[name]:
            if each.family != socket.AF_INET or state is None or not state.isup:
                continue
            network = ipaddress.ip_network(f"{each.address}/{each.netmask or '255.255.255.255'}", strict=False)
            found.append(
                {
                    "name": name,
                    "address": each.address,
                    "network": str(network),
                    "loopback": ipaddress.ip_address(each.address).is_loopback,
                    "speed_mbits": int(state.speed),
                    "mtu": int(state.mtu),
                }
            )
    return found


def own_interfaces() -> list[dict[str, Any]]:
    """Return those of this machine; ModuleNotFoundError without psutil."""
    import psutil

    return interfaces(psutil.net_if_addrs(), psutil.net_if_stats())


def described(interface: Mapping[str, Any]) -> str:
    """Return 'eth0 10.77.0.1 (1000 Mbit/s, MTU 1500)'."""
    speed = f"{interface['speed_mbits']} Mbit/s" if interface["speed_mbits"] > 0 else "speed unknown"
    return f"{interface['name']} {interface['address']} ({speed}, MTU {interface['mtu']})"


class NetworkChecks:
    """The checks of this machine's network."""

    def __init__(self, here: Here, *, several_hosts: bool, interface: str | None) -> None:
        self._here, self._several, self._interface = here, several_hosts, interface

    def check_interfaces(self, area: Area) -> None:
        """Which are there, and which would be used between hosts."""
        found = own_interfaces()
        real = [each for each in found if not each["loopback"]]
        bridges = ("docker", "virbr", "br-", "cni", "lxc", "podman", "flannel")
        inner = [each for each in real if each["name"].startswith(bridges)]
        outer = [each for each in real if each not in inner]
        if not real:
            text = "only the loopback is up"
            if self._several:
                area.fail("interfaces", f"{text}: no other host can be reached", "bring the network up (ip link)")
            else:
                area.ok("interfaces", f"{text}: enough for runs on this machine")
        else:
            area.ok("interfaces", "; ".join(described(each) for each in outer or real))
        if self._interface is not None and self._interface not in {each["name"] for each in found}:
            names = ", ".join(each["name"] for each in real) or "none but the loopback"
            area.fail(
                "interface",
                f"{self._interface} is to be used, but it is not here, or is down, or has no IPv4 address",
                f"set `interface` in the partition's file to one of: {names}",
            )
        elif self._several and self._interface is None and len(outer) > 1:
            names = ", ".join(each["name"] for each in outer)
            area.warning(
                "several networks",
                f"{names}: each library chooses by itself, and not always the fast one",
                f"say which with `interface: {_fastest(outer)}` in the partition's file, and check it in the run "
                "records with --require path=tcp:NAME",
            )
        if self._several and inner and self._interface is None:
            names = ", ".join(each["name"] for each in inner)
            area.warning(
                "inner networks",
                f"{names} lead to containers of this machine only; Open MPI and Gloo may try them and hang",
                f"say which to use with `interface: {_fastest(outer or real)}` in the partition's file",
            )

    def own_name(self, area: Area) -> None:
        """What the name of this machine stands for: Gloo listens there unless it is told an interface."""
        name = platform.node()
        try:
            entries = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except OSError as error:
            text = f"{name} does not resolve ({error.strerror or error})"
            remedy = f"add a line with this machine's address and {name} to /etc/hosts, or give `interface`"
            if self._several:
                area.fail("own name", text, remedy)
            else:
                area.warning("own name", f"{text}: PyTorch and Gloo look it up", remedy)
            return
        addresses = sorted({str(entry[4][0]) for entry in entries})
        text = f"{name} is {', '.join(addresses)}"
        if not all(address.startswith("127.") for address in addresses):
            area.ok("own name", text)
        elif not self._several:
            area.ok("own name", f"{text}, the loopback: right for one machine, wrong between several")
        elif self._interface is not None:
            area.ok("own name", f"{text}, the loopback; {self._interface} is used instead")
        else:
            area.warning(
                "own name",
                f"{text}, the loopback: Gloo would listen there, where no other host reaches it",
                f"give `interface: NAME` in the partition's file, or let {name} stand for the machine's address in "
                "/etc/hosts",
            )

    def variables(self, area: Area) -> None:
        """Do variables name interfaces that are there."""
        present = {each["name"] for each in own_interfaces()}
        named = {name: self._here.environ[name] for name in NAMING if self._here.environ.get(name)}
        for variable, text in named.items():
            if text.startswith("^") or "/" in text:  # all but these, or a network
                continue
            prefixes = variable == "NCCL_SOCKET_IFNAME" and not text.startswith("=")
            missing = [
                name
                for name in text.lstrip("=").split(",")
                if not any(each.startswith(name) if prefixes else each == name for each in present)
            ]
            if missing:
                area.fail(
                    variable,
                    f"it names {missing[0]}, which is not here or is down; here are {', '.join(sorted(present))}",
                    f"unset {variable}, or name one of these",
                )
            else:
                area.ok(variable, text)

    def fast(self, area: Area) -> None:
        """Is there InfiniBand, which libraries leave aside in silence."""
        ports = infiniband(self._here)
        if ports:
            area.ok(
                "InfiniBand",
                f"{plural(len(ports), 'active port')}: {', '.join(ports)}; whether a run used it is in its record, and "
                "--require path=infiniband insists on it",
            )
        elif list((self._here.system / "class" / "infiniband").glob("*")):
            area.warning(
                "InfiniBand",
                "there are devices, but no port is active: libraries take TCP without a word",
                "ibstat says why (cable, subnet manager); ask the administrator",
            )
        elif self._several:
            area.ok("InfiniBand", "none here: hosts communicate over TCP")


def _fastest(interfaces: Sequence[Mapping[str, Any]]) -> str:
    return str(max(interfaces, key=lambda each: each["speed_mbits"])["name"])
