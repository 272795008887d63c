//! Compiles the shim for this machine, and links with the DPDK libraries that pkg-config names.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/shim.c");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let flags = |what: &str| {
        let found = Command::new("pkg-config").args([what, "libdpdk"]).output();
        let found = found.ok().filter(|found| found.status.success());
        let found = found.expect("pkg-config finds no libdpdk: tools/need bench-dpdk installs it");
        String::from_utf8_lossy(&found.stdout).split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    let object = out.join("shim.o");
    // The libraries are those of the distribution; inline functions of the headers use all instructions of this
    // machine.
    let cflags = flags("--cflags").into_iter().filter(|flag| !flag.starts_with("-march"));
    let mut cc = Command::new("cc");
    cc.args(cflags).args([
        "-O3",
        "-march=native",
        "-DALLOW_EXPERIMENTAL_API",
        "-Wall",
        "-Werror",
        "-c",
        "src/shim.c",
        "-o",
    ]);
    assert!(cc.arg(&object).status().is_ok_and(|status| status.success()), "cc failed");
    let archive = out.join("libshim.a");
    let _ = std::fs::remove_file(&archive);
    let ar = Command::new("ar").arg("rcs").args([&archive, &object]).status();
    assert!(ar.is_ok_and(|status| status.success()), "ar failed");
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=shim");
    for library in
        ["rte_gro", "rte_gso", "rte_mbuf", "rte_mempool", "rte_mempool_ring", "rte_ring", "rte_net", "rte_eal"]
    {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
}
