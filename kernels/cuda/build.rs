//! With the feature `cuda`: compiles the kernels for GPUs. With `emulated`: compiles the kernels and the emulator for
//! the CPU, and lists the kernels.

fn main() {
    println!("cargo::rerun-if-changed=device");
    println!("cargo::rerun-if-changed=emulator");
    #[cfg(feature = "emulated")]
    emulated();
    #[cfg(feature = "cuda")]
    cuda();
}

/// Compiles every file of `device/` to a fat binary: machine code for Ampere, Ada, Hopper and Blackwell, PTX of Turing
/// for other GPUs.
#[cfg(feature = "cuda")]
fn cuda() {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    let home = std::env::var_os("CUDA_HOME").map(PathBuf::from);
    let compiler = home.map_or(PathBuf::from("nvcc"), |home| home.join("bin/nvcc"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    // As in scripts/cuda: the one GPU that a build is for.
    println!("cargo::rerun-if-env-changed=KEPT_CUDA_ONLY");
    let only = std::env::var("KEPT_CUDA_ONLY").unwrap_or_default();
    let gpus = match only.as_str() {
        "" | "ptx" => "80,86,89,90,120",
        one => one,
    };
    let files = std::fs::read_dir("device").expect("the folder of kernels");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "cu"));
    files.sort();
    let compile = |file: &Path, to: &Path| {
        let mut command = Command::new(&compiler);
        command.args([
            "-std=c++17",
            "-O3",
            "-fatbin",
            "-gencode=arch=compute_75,code=compute_75",
        ]);
        for gpu in gpus.split(',') {
            command.arg(format!("-gencode=arch=compute_{gpu},code=sm_{gpu}"));
        }
        let status = command.arg(file).arg("-o").arg(to).status();
        let status = status.unwrap_or_else(|error| {
            panic!(
                "{} cannot be run ({error}); `make cuda` gets it",
                compiler.display()
            )
        });
        assert!(status.success(), "{} does not compile", file.display());
    };
    let mut list =
        String::from("/// One for each file of `device/`.\nconst FAT_BINARIES: &[&[u8]] = &[\n");
    for file in &files {
        let to = out
            .join(file.file_stem().expect("a name"))
            .with_extension("fatbin");
        compile(file, &to);
        list.push_str(&format!(
            "    include_bytes!({:?}),\n",
            to.display().to_string()
        ));
    }
    list.push_str("];\n");
    std::fs::write(out.join("fat_binaries.rs"), list).expect("a file in the build's own folder");
}

/// Compiles the emulator and every file of `device/` for the CPU, and lists the kernels. Calls the compiler directly,
/// to avoid one more build dependency.
#[cfg(feature = "emulated")]
fn emulated() {
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::process::Command;

    println!("cargo::rerun-if-env-changed=CXX");
    let compiler = std::env::var_os("CXX").unwrap_or("c++".into());
    let run = |command: &mut Command| {
        let output = command.output().unwrap_or_else(|error| {
            panic!(
                "{} cannot be run ({error}): a C++ compiler is needed",
                command.get_program().display()
            )
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
        output.stdout
    };
    let compile = || {
        let mut command = Command::new(&compiler);
        command.args([
            "-std=c++17",
            "-O2",
            "-fPIC",
            // As in kept-kernels: no fused multiply-add, which some CPUs would use.
            "-ffp-contract=off",
            "-DKEPT_EMULATED",
            "-Wall",
            "-Wextra",
            "-Wno-unknown-pragmas",
            "-x",
            "c++",
        ]);
        command
    };
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let files = std::fs::read_dir("device").expect("the folder of kernels");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "cu"));
    files.push(PathBuf::from("emulator/emulator.cpp"));
    files.sort();
    let mut names = BTreeSet::new();
    let mut objects = Vec::new();
    for file in &files {
        let expanded = run(compile().arg("-E").arg(file));
        let expanded = String::from_utf8_lossy(&expanded);
        for (at, mark) in expanded.match_indices("emulated_") {
            let rest = &expanded[at..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            if end.is_some_and(|end| end > mark.len()) {
                names.insert(rest[..end.unwrap_or(0)].to_owned());
            }
        }
        let object = out
            .join(file.file_stem().expect("a name"))
            .with_extension("o");
        run(compile().arg("-c").arg(file).arg("-o").arg(&object));
        objects.push(object);
    }
    let archive = out.join("libkept_emulated.a");
    // An archive of an earlier build may hold objects of deleted files, and `ar` would add to it.
    match std::fs::remove_file(&archive) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            panic!("{} cannot be rebuilt: {error}", archive.display())
        }
        _ => {}
    }
    run(Command::new("ar").arg("crs").arg(&archive).args(&objects));
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=kept_emulated");
    println!("cargo::rustc-link-lib=dylib=stdc++");
    let names: Vec<String> = names.into_iter().collect();
    let list = format!("kernels!({});\n", names.join(",\n    "));
    std::fs::write(out.join("kernels.rs"), list).expect("a file in the build's own folder");
}
