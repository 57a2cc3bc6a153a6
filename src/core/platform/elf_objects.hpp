// The program and the shared libraries of this process, and how their files were made. Reads their
// ELF headers and runs nothing. Files may be anything: parts that contradict each other are left
// out.
#pragma once

#include <string>
#include <vector>

namespace twinrun {

struct LoadedObject {
    std::string path;      // resolved; the program comes first
    std::string build_id;  // of the linker's note, in hex; empty: it made none
};

// Program and libraries, in the order of loading. Reads no file.
std::vector<LoadedObject> loaded_objects();

// What compilers left in a file: each line of the section .comment once, and of .GCC.command.line
// (there with -frecord-gcc-switches only). Empty: no such section, or not an ELF file of this
// machine.
struct ElfProducers {
    std::string compilers;
    std::string switches;
};
ElfProducers elf_producers(const std::string& path);

}  // namespace twinrun
