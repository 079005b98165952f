"""Hosts with soft RDMA devices (RoCE) in one guest: host i has the network device h<i> with address 10.78.0.<i>, the RDMA device rxe<i> on it,
and a cable to a switch, which can be shaped, lossy or cut.

All is in one network namespace, because rxe of Linux 6.1 opens its sockets only in the first one; policy routing sends what goes from one
host's address to another's out over the cables. A process is on the host whose address it binds, or whose device it uses. Nothing is undone
at the end: the guest goes away.

    roce_lab.py HOSTS [QDISC...]    makes them; tc's words for both ends of every cable: netem delay 1ms loss 1%
"""
import json
import subprocess
import sys

MTU = 4200  # room for RDMA's largest packets, 4096 bytes of payload, in one Ethernet frame
IPV4 = "net.ipv4.conf"


def run(*words, said=None):
    done = subprocess.run([str(word) for word in words], input=said, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: status {done.returncode}\n{said or ''}\n{done.stdout}{done.stderr}")
    return done.stdout


class RoceLab:
    def __init__(self, hosts, *qdisc):
        self.hosts = hosts
        self.qdisc = qdisc
        run("sysctl", "-qw", *(f"{IPV4}.{kind}.{name}" for kind in ("all", "default") for name in (
            "accept_local=1", "rp_filter=0", "arp_ignore=1", "arp_announce=2")))
        run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        lines = [f"link add switch mtu {MTU} type bridge", "link set switch up", "rule add pref 10 lookup local", "rule del pref 0"]
        for host in range(1, hosts + 1):
            lines += self._host(host)
        run("ip", "-batch", "-", said="\n".join(lines))
        for host in range(1, hosts + 1):
            self.add_device(host)
            if qdisc:
                self.shape(host, *qdisc)

    def _host(self, host):
        address, near, far = self.address(host), f"h{host}", f"p{host}"
        return [
            f"link add {near} mtu {MTU} type veth peer name {far} mtu {MTU}",
            f"link set {far} master switch up",
            f"link set {near} up",
            f"addr add {address}/24 dev {near}",
            f"rule add pref 1 from {address} to {address} lookup local",  # to itself
            f"rule add pref 2 iif {near} to {address} lookup local",  # arrived
            f"rule add pref 3 from {address} to 10.78.0.0/24 lookup {100 + host}",
            self._route(host),
        ]

    def _route(self, host):
        return f"route add 10.78.0.0/24 dev h{host} src {self.address(host)} table {100 + host}"

    def bring_up(self, host):
        """A network device that was down: its route went with it."""
        run("ip", "-batch", "-", said=f"link set h{host} up\n{self._route(host)}")

    def add_ipv6(self, host):
        """One more address, reached over the cables as the other one."""
        run("sysctl", "-qw", f"net.ipv6.conf.h{host}.disable_ipv6=0")
        if not any(line.startswith("10:") for line in run("ip", "-6", "rule").splitlines()):
            run("ip", "-6", "-batch", "-", said="rule add pref 10 lookup local\nrule del pref 0")
        run("ip", "-6", "-batch", "-", said="\n".join(self._ipv6(host, "add")))

    def drop_ipv6(self, host):
        run("ip", "-6", "-batch", "-", said="\n".join(reversed(self._ipv6(host, "del"))))
        run("sysctl", "-qw", f"net.ipv6.conf.h{host}.disable_ipv6=1")

    def _ipv6(self, host, verb):
        address = self.ipv6(host)
        return [
            f"addr {verb} {address}/64 dev h{host}" + (" nodad" if verb == "add" else ""),
            f"rule {verb} pref 1 from {address} to {address} lookup local",
            f"rule {verb} pref 2 iif h{host} to {address} lookup local",
            f"rule {verb} pref 3 from {address} to fd78::/64 lookup {100 + host}",
            f"route {verb} fd78::/64 dev h{host} src {address} table {100 + host}",
        ]

    @staticmethod
    def ipv6(host):
        return f"fd78::{host}"

    @staticmethod
    def address(host):
        return f"10.78.0.{host}"

    @staticmethod
    def device(host):
        return f"rxe{host}"

    @staticmethod
    def shape(host, *qdisc):
        """Both directions of a cable; without words, a cable as fast as the guest."""
        for end in (f"h{host}", f"p{host}"):
            run("tc", "qdisc", "replace", "dev", end, "root", *(qdisc or ("noqueue",)))

    def cut(self, host):
        """Packets vanish, and nobody hears anything."""
        self.shape(host, "netem", "loss", "100%")

    def mend(self, host):
        self.shape(host, *self.qdisc)

    def add_device(self, host):
        run("rdma", "link", "add", self.device(host), "type", "rxe", "netdev", f"h{host}")

    def delete_device(self, host):
        run("rdma", "link", "delete", self.device(host))


def resources():
    """What all RDMA devices hold for their users and themselves: {"rxe1": {"qp": 1, "cq": 2, ...}, ...}."""
    listed = json.loads(run("rdma", "-j", "resource", "show"))
    return {device.pop("ifname"): {kind: count for kind, count in device.items() if kind != "ifindex"} for device in listed}


if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    RoceLab(int(sys.argv[1]), *sys.argv[2:])
