#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All GPU checks and benchmarks on a machine with one or two GPUs.

  tests/device/run.py BUNDLE --checkpoints DIR [--out FILE] [--gpus 1]
      [--parts PART,...] [--only WORD,...]

BUNDLE is what tests/device/bundle made. DIR holds folders of checkpoints, each
with its golden.json. Nothing is built and nothing but the standard library is
needed. Writes one JSON: the machine, each part's outcome, and the figures.
Exit status 1 if a check failed; a figure under its bound is reported as such
and is no failure.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


# Checkpoints whose sizes let two GPUs share a stage.
SHARED = ["apertus", "arcee", "nanbeige", "exaone4-tied", "exaone4-hybrid",
          "mixtral", "spark2_5", "kimi_linear"]
# What `baton serve` says.
LISTENING = r"^baton: listening on"
SERVING = r"controller\.serving"


def median(values):
    return statistics.median(values) if values else None


class Runner:
    def __init__(self, bundle, checkpoints, only, gpus):
        self.bundle = os.path.abspath(bundle)
        self.checkpoints = checkpoints
        self.only = only
        self.env = dict(os.environ)
        nccl = sorted(glob.glob("/usr/lib/x86_64-linux-gnu/libnccl.so.2"))
        self.env["LD_LIBRARY_PATH"] = ":".join(
            [self.bundle + "/lib", "/usr/local/cuda/lib64"]
            + [os.path.dirname(n) for n in nccl])
        self.env["NCCL_NVLS_ENABLE"] = "0"
        self.gpus = self.smi("index")[:gpus]
        self.env["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        self.report = {
            "machine": {
                "gpus": self.smi("name")[:gpus],
                "driver": self.smi("driver_version")[0],
                "cores": os.cpu_count(),
            },
            "version": self.output(["baton", "--version"]).strip(),
            "checks": [],
            "figures": {},
        }

    @property
    def two(self):
        return len(self.gpus) > 1

    def smi(self, what):
        out = subprocess.run(
            ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"],
            capture_output=True, text=True, check=True).stdout
        return out.split("\n")[:-1]

    def command(self, args):
        return [os.path.join(self.bundle, args[0])] + args[1:]

    def output(self, args, timeout=60):
        return subprocess.run(self.command(args), env=self.env, timeout=timeout,
                              capture_output=True, text=True).stdout

    def wanted(self, name):
        return not self.only or any(w in name for w in self.only)

    def check(self, name, args, timeout, keep=1, prefix=()):
        """Runs one check; its last lines go into the report."""
        if not self.wanted(name):
            return None
        start = time.time()
        try:
            done = subprocess.run(list(prefix) + self.command(args),
                                  env=self.env, timeout=timeout, text=True,
                                  stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code = -1
            text = (late.stdout or b"").decode(errors="replace") + "\ntimed out"
        lines = text.strip().split("\n")
        failures = [] if code == 0 else [
            line for line in lines[:-keep]
            if re.search("FAIL|Error|Invalid|hazards", line)][:40]
        self.add(name, code == 0, failures + lines[-keep:], start)
        return text

    def add(self, name, passed, lines, start):
        seconds = round(time.time() - start, 1)
        self.report["checks"].append(
            {"name": name, "passed": passed, "seconds": seconds, "last": lines})
        print(f"{'ok  ' if passed else 'FAIL'} {name} ({seconds} s): {lines[-1]}",
              flush=True)

    def figure(self, name, value, must=None, unit="", below=False):
        if value is None:
            return
        entry = {"value": round(value, 4), "unit": unit}
        mark = ""
        if must is not None:
            met = value <= must if below else value >= must
            entry.update({"must": must, "met": met})
            mark = "" if met else f"   (must: {must})"
        self.report["figures"][name] = entry
        print(f"     {name}: {value:.4g} {unit}{mark}", flush=True)

    def bench(self, name, config, stages, batches, prompt, tokens, chunk=4096,
              timeout=120, ranks=1, rounds=3, step_tokens=4096):
        if not self.wanted(name):
            return {}
        devices = ",".join(f"cuda:{i}" for i in range(max(1, max(stages))))
        if ranks > 1:
            devices = "cuda:" + "+".join(map(str, range(ranks)))
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            text = self.check(name, [
                "baton", "--log-level", "error", "bench",
                os.path.join(ROOT, "tests/configs", config), "--random-weights",
                "--device", devices, "--rounds", str(rounds),
                "--tp", str(ranks),
                "--stages", ",".join(map(str, stages)),
                "--batch", ",".join(map(str, batches)),
                "--prompt", str(prompt), "--tokens", str(tokens),
                "--prefill-chunk", str(chunk), "--max-step-tokens", str(step_tokens),
                "--json", out.name], timeout)
            try:
                result = json.load(open(out.name))
            except ValueError:
                print(text)
                return {}
        self.report.setdefault("bench", {})[name] = result
        return {(r["stages"], r["batch"]): r for r in result["rows"]}

    # --- The parts

    def kernels(self):
        self.check("kernels: matmul", ["matmul_check", "check"], 90)
        self.check("kernels: cuBLASLt", ["matmul_check", "lt"], 60)
        self.check("kernels: attention, rows, sampling",
                   ["attention_check", "check"], 60)

    def sanitizers(self):
        parts = [["matmul_check", "sanitize"]] + [
            ["attention_check", f"sanitize_{what}"]
            for what in ("rows", "attention", "enter", "experts", "kimi")]

        def run(tool, part):
            self.check(f"sanitizer {tool}: {' '.join(part)}", part, 240,
                       prefix=["compute-sanitizer", "--tool", tool,
                               "--error-exitcode", "7"])
        with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
            for tool in ("memcheck", "racecheck"):
                list(pool.map(lambda part: run(tool, part), parts))

    def parity(self):
        paths = ["direct", "nccl", "host"] if self.two else ["best"]
        devices = "cuda:0,cuda:1" if self.two else "cuda"
        for checkpoint in self.checkpoints:
            name = os.path.basename(checkpoint)
            routes = ["ring"]
            if json.load(open(checkpoint + "/config.json")).get("num_loops", 1) > 1:
                routes.append("unrolled")
            for path in paths:
                for route in routes:
                    self.check(
                        f"parity: {name}, {devices}, {path}, {route}",
                        ["baton", "--log-level", "error", "parity", checkpoint,
                         "--golden", checkpoint + "/golden.json",
                         "--device", devices, "--gpu-path", path,
                         "--route", route, "--dtype", "bf16", "--pp", "1,2,3",
                         "--chunk", "0,64,7", "--batch", "1,5,33"], 120)
            if self.two and name in SHARED:
                self.check(
                    f"parity: {name}, two ranks",
                    ["baton", "--log-level", "error", "parity", checkpoint,
                     "--golden", checkpoint + "/golden.json",
                     "--device", "cuda:0+1", "--tp", "1,2", "--dtype", "bf16",
                     "--pp", "1,2,3", "--chunk", "0,64,7", "--batch", "1,5"],
                    120)

    def transport(self):
        text = self.check("transport", ["transport_check"], 150, keep=60)
        for line in (text or "").split("\n"):
            hop = re.match(r"latency, (\w+), (graphs|launched), (\d+) rows\s+"
                           r"([\d.]+) us", line)
            if hop:
                path, how, rows, us = hop.groups()
                bound = 8 if (path, how) == ("direct", "graphs") else None
                self.figure(f"hop, {path}, {how}, {rows} rows of 4096",
                            float(us), bound, "us", below=True)

    def speed(self):
        rows = self.bench("speed: Apertus-8B", "apertus-8b", [1],
                          [1, 8, 16, 32], 1024, 96)
        musts = {1: 0.75, 8: 0.70, 16: 0.70, 32: 0.70}
        for batch, must in musts.items():
            row = rows.get((1, batch))
            if row:
                self.figure(f"Apertus-8B decode, batch {batch}, of the floor",
                            median(row["decode_share_of_probe"]), must)
        loads = self.report.get("bench", {}).get("speed: Apertus-8B", {})
        for load in loads.get("load", []):
            self.figure("predicted bytes / taken on the GPU",
                        (load["weight_bytes"] + load["kv_bytes"])
                        / load["gpu_bytes"], 0.98)
        rows = self.bench("speed: Apertus-8B, 8k prompt", "apertus-8b", [1],
                          [1], 8192, 16)
        if rows:
            self.figure("Apertus-8B, 8k prompt",
                        median(rows[1, 1]["prompt_tokens_per_s"]), 30000,
                        "tok/s")
        rows = self.bench("speed: host work", "apertus-8b", [1], [1, 32], 16,
                          256)
        for (_, batch), row in rows.items():
            self.figure(f"host work per step, batch {batch}",
                        median(row["host_us_per_visit"]), 100, "us", below=True)

    def ranks(self):
        self.check("ranks", ["ranks_check", "check"], 120)
        text = self.check("ranks: speed", ["ranks_check", "speed"], 60, keep=4)
        for line in (text or "").split("\n"):
            call = re.match(r"all-reduce \+ add \+ norm, (\d+) rows of (\d+): "
                            r"([\d.]+) us; NCCL .*: ([\d.]+) us", line)
            if call:
                rows, size, us, nccl = call.groups()
                self.figure(f"all-reduce + add + norm, {rows} rows of {size}",
                            float(us), float(nccl), "us", below=True)
        if not self.two:
            return
        for name, config, must in (("Apertus-8B", "apertus-8b", 1.35),
                                   ("EXAONE-32B", "exaone-4.0-32b", 1.5)):
            speed = [self.bench(f"ranks: {name}, TP{ranks}", config, [1], [1],
                                1024, 64, timeout=150, ranks=ranks, rounds=2)
                     for ranks in (1, 2)]
            if all(speed):
                one, two = (median(rows[1, 1]["decode_tokens_per_s"])
                            for rows in speed)
                self.figure(f"{name}, TP2 / TP1, batch 1", two / one, must)
            if name == "EXAONE-32B" and speed[0]:
                self.floor(name, speed[0], 1, 0.65)

    def floor(self, name, rows, batch, must):
        if must is not None and (1, batch) in rows:
            self.figure(f"{name} decode, batch {batch}, of the floor",
                        median(rows[1, batch]["decode_share_of_probe"]), must)

    def decoders(self):
        """Decoders at their real size; the others are in `speed`, `ranks`."""
        for name, config in (("EXAONE-1.2B", "exaone-4.0-1.2b"),
                             ("Spark-4B", "spark-x2.5-4b"),
                             ("AFM-4.5B", "afm-4.5b"),
                             ("Nanbeige-3B", "nanbeige4.2-3b")):
            rows = self.bench(f"decoders: {name}", config, [1], [1], 1024, 64,
                              rounds=2)
            self.floor(name, rows, 1, 0.65)
        # They are loaded once: decode is at a context of 8k, too.
        for name, config, one, ceiling, prompt in (
                ("Kimi-Linear-48B", "kimi-linear-48b-a3b", 0.45, 128015, 0.30),
                ("Mixtral-8x7B", "mixtral-8x7b", 0.65, 28851, 0.45)):
            rows = self.bench(f"decoders: {name}", config, [1], [1, 16], 8192,
                              24, timeout=150, rounds=1, chunk=8192,
                              step_tokens=8192)
            for batch, must in ((1, one), (16, 0.65)):
                self.floor(name, rows, batch, must)
            if (1, 1) in rows:
                self.figure(f"{name}, 8k prompt, of the ceiling",
                            median(rows[1, 1]["prompt_tokens_per_s"]) / ceiling,
                            prompt)

    def pipelines(self):
        def ratio(rows, what, over, under):
            if over not in rows or under not in rows:
                return None
            return median([a / b for a, b in zip(rows[over][what],
                                                 rows[under][what])])
        decode, prompt = "decode_tokens_per_s", "prompt_tokens_per_s"
        rows = self.bench("pipelines: Apertus-8B", "apertus-8b", [1, 2],
                          [1, 16, 32], 1024, 96)
        self.figure("PP2 / PP1, batch 1", ratio(rows, decode, (2, 1), (1, 1)),
                    0.96)
        self.figure("PP2 with 2 x 16 / PP1 with 16",
                    ratio(rows, decode, (2, 32), (1, 16)), 1.85)
        rows = self.bench("pipelines: Apertus-8B, 32k prompt", "apertus-8b",
                          [1, 2], [1], 32768, 8, chunk=2048)
        self.figure("PP2 / PP1, 32k prompt in chunks of 2k",
                    ratio(rows, prompt, (2, 1), (1, 1)), 1.7)
        rows = self.bench("pipelines: Nanbeige-3B ring", "nanbeige4.2-3b",
                          [1, 2], [16, 32], 1024, 96)
        value = ratio(rows, decode, (2, 32), (1, 16))
        self.figure("Nanbeige-3B ring, PP2 with 2 x 16 / 2 x PP1",
                    value and value / 2, 0.92)

    def mixed(self):
        """A CPU stage and a GPU stage in one pipeline, by the front."""
        if not self.wanted("mixed"):
            return
        start = time.time()
        with Server(self, ["serve", os.path.join(ROOT, "deploy/demo"),
                           "--listen", "127.0.0.1:0", "--stages", "2",
                           "--device", "cpu,cuda"]) as server:
            text = self.output(["baton", "generate", "--server", server.address,
                                "--ids", "1,2,3,4,5,6,7,8", "--temperature",
                                "0", "--max-tokens", "48", "--ignore-eos",
                                "--json"])
        ids = json.loads(text.strip().split("\n")[-1]).get("ids", []) if text else []
        self.add("mixed: a CPU stage and a GPU stage", len(ids) == 48,
                 [f"{len(ids)} tokens: {ids[:8]}"], start)

    def kill(self):
        """kill -9 of one of two GPU stages while it decodes."""
        if not self.wanted("kill"):
            return
        start = time.time()
        stages = [f"cuda:{i % len(self.gpus)}" for i in range(2)]
        config = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        config.write("listen: 127.0.0.1:0\nstages:\n  - name: a\n  - name: b\n")
        config.flush()
        model = os.path.join(ROOT, "tests/configs/apertus-8b")
        with Server(self, ["serve", model, "--random-weights", "--config",
                           config.name], wait=LISTENING) as server:
            hosts = [subprocess.Popen(
                self.command(["baton", "stage", "--controller", server.address,
                              "--name", name, "--device", device,
                              "--checkpoint", model]),
                env=self.env, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
                for name, device in zip("ab", stages)]
            server.await_line(SERVING, 120)
            client = subprocess.Popen(
                self.command(["baton", "generate", "--server", server.address,
                              "--ids", "1,2,3", "--max-tokens", "4000",
                              "--ignore-eos"]),
                env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True)
            time.sleep(3)
            alive = client.poll() is None
            killed = time.time()
            hosts[1].kill()
            try:
                said = client.communicate(timeout=10)[0]
            except subprocess.TimeoutExpired:
                said = "the client hangs"
                client.kill()
            told = time.time() - killed
            passed = alive and "UNAVAILABLE" in said and told < 5
            # The survivor serves again with a replacement: it left its stream.
            again = subprocess.Popen(
                self.command(["baton", "stage", "--controller", server.address,
                              "--name", "b", "--device", stages[1],
                              "--checkpoint", model]),
                env=self.env, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
            server.await_line(SERVING, 120, count=2)
            text = self.output(["baton", "generate", "--server", server.address,
                                "--ids", "1,2,3", "--max-tokens", "8",
                                "--ignore-eos", "--json"])
            served = text.strip().endswith("}")
            for host in (hosts[0], again):
                host.send_signal(signal.SIGTERM)
                host.wait(20)
        self.add("kill: one of two GPU stages", passed and served,
                 [f"told after {told:.2f} s; with a replacement: "
                  f"{'serves' if served else 'does not serve'}; the client: "
                  + said.strip().split("\n")[-1][-160:]], start)


class Server:
    """`baton serve` in the background; its address once it is there."""

    def __init__(self, runner, args, wait=SERVING):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(runner.command(["baton"] + args),
                                        env=runner.env, stdout=self.log,
                                        stderr=subprocess.STDOUT)
        self.wait = wait

    def __enter__(self):
        self.await_line(LISTENING, 120)
        self.address = re.search(r"listening on (\S+)",
                                 open(self.log.name).read()).group(1)
        self.await_line(self.wait, 120)
        return self

    def await_line(self, line, seconds, count=1):
        end = time.time() + seconds
        pattern = re.compile(line, re.M)
        while time.time() < end and self.process.poll() is None:
            if len(pattern.findall(open(self.log.name).read())) >= count:
                return
            time.sleep(0.1)
        raise SystemExit(f"baton serve never said '{line}':\n"
                         + open(self.log.name).read()[-2000:])

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--out", default="device.json")
    parser.add_argument("--only", default="", help="checks with such a word")
    parser.add_argument("--gpus", type=int, default=2, help="at most so many")
    parser.add_argument("--parts", default="kernels,parity,transport,mixed,"
                        "kill,speed,decoders,pipelines,ranks,sanitizers")
    args = parser.parse_args()
    checkpoints = sorted(os.path.dirname(p) for p in glob.glob(
        os.path.join(os.path.abspath(args.checkpoints), "*/golden.json")))
    runner = Runner(args.bundle, checkpoints,
                    [w for w in args.only.split(",") if w], args.gpus)
    print(json.dumps(runner.report["machine"]), runner.report["version"])
    for part in args.parts.split(","):
        if part == "pipelines" and not runner.two:
            continue
        try:
            getattr(runner, part)()
        except (Exception, SystemExit) as error:  # the other parts still count
            runner.add(part, False, [repr(error)], time.time())
        with open(args.out, "w") as out:
            json.dump(runner.report, out, indent=1)
            out.write("\n")
    failed = [c["name"] for c in runner.report["checks"] if not c["passed"]]
    missed = [n for n, f in runner.report["figures"].items()
              if f.get("met") is False]
    print(f"{len(runner.report['checks'])} checks, {len(failed)} failed "
          f"{failed}; {len(runner.report['figures'])} figures, "
          f"{len(missed)} under their bound {missed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
