#include "platform/elf_objects.hpp"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <span>
#include <string>

namespace twinrun {

namespace {

constexpr std::size_t kLongestSection = 64 << 10;
constexpr std::size_t kMostSections = 4096;

std::string resolved(const std::string& path) {
    std::array<char, PATH_MAX> buffer;
    return realpath(path.c_str(), buffer.data()) != nullptr ? buffer.data() : path;
}

// Resolves paths of many files in few folders: `realpath` asks for each part of each path, and a
// program of Python has hundreds of libraries.
class Resolver {
   public:
    std::string operator()(const std::string& path) {
        const std::size_t slash = path.rfind('/');
        const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
        if (slash == std::string::npos || slash == 0 || name.empty() || name == "." || name == "..")
            return resolved(path);
        const auto [folder, isNew] = folders_.try_emplace(path.substr(0, slash));
        if (isNew) folder->second = resolved(folder->first);
        std::string joined = folder->second + (folder->second.ends_with('/') ? "" : "/") + name;
        char first = 0;
        // A file that is no link; else a link, or nothing that is there.
        return readlink(joined.c_str(), &first, 1) < 0 && errno == EINVAL ? joined : resolved(path);
    }

   private:
    std::map<std::string, std::string> folders_;
};

// The GNU build-id among the notes of a segment: name size, description size, type, then both
// padded to 4 bytes.
std::string build_id(std::span<const unsigned char> notes) {
    constexpr std::size_t kHeader = 12;
    auto padded = [](std::uint64_t n) { return (n + 3) / 4 * 4; };
    while (notes.size() >= kHeader) {
        std::array<std::uint32_t, 3> header{};
        std::memcpy(header.data(), notes.data(), kHeader);
        const std::uint64_t name = padded(header[0]);
        const std::uint64_t description = padded(header[1]);
        if (name + description > notes.size() - kHeader) return {};
        if (header[2] == NT_GNU_BUILD_ID && header[0] == 4 &&
            std::memcmp(notes.data() + kHeader, "GNU", 4) == 0) {
            std::string hex;
            for (const unsigned char byte :
                 notes.subspan(kHeader + name, std::min<std::size_t>(header[1], 64))) {
                hex += "0123456789abcdef"[byte >> 4];
                hex += "0123456789abcdef"[byte & 15];
            }
            return hex;
        }
        notes = notes.subspan(kHeader + name + description);
    }
    return {};
}

// Called with the loader's lock held: copies, and leaves the rest to the caller.
int remember(dl_phdr_info* info, std::size_t, void* list) {
    std::span<const ElfW(Phdr)> segments{info->dlpi_phdr, info->dlpi_phnum};
    try {
        LoadedObject object;
        object.path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        for (const auto& note : segments) {
            if (note.p_type != PT_NOTE || !object.build_id.empty()) continue;
            const bool mapped = std::any_of(segments.begin(), segments.end(), [&](const auto& load) {
                return load.p_type == PT_LOAD && load.p_vaddr <= note.p_vaddr &&
                       note.p_filesz <= load.p_filesz &&
                       note.p_vaddr - load.p_vaddr <= load.p_filesz - note.p_filesz;
            });
            if (mapped) {
                object.build_id = build_id(
                    {reinterpret_cast<const unsigned char*>(info->dlpi_addr + note.p_vaddr), note.p_filesz});
            }
        }
        static_cast<std::vector<LoadedObject>*>(list)->push_back(std::move(object));
    } catch (const std::exception&) {
        return 1;  // out of memory: the objects found so far are used
    }
    return 0;
}

class File {
   public:
    explicit File(const char* path) : descriptor_(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
    ~File() {
        if (descriptor_ >= 0) close(descriptor_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    [[nodiscard]] bool read(std::uint64_t offset, void* to, std::size_t bytes) const {
        return descriptor_ >= 0 && offset <= INT64_MAX &&
               pread(descriptor_, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
    }

   private:
    int descriptor_;
};

// A section of NUL-ended lines, each line once: every object file that was linked brought its own.
std::string lines_of(const File& file, const ElfW(Shdr) & section) {
    std::string text(std::min<std::uint64_t>(section.sh_size, kLongestSection), '\0');
    if (section.sh_type == SHT_NOBITS || !file.read(section.sh_offset, text.data(), text.size())) return {};
    std::vector<std::string> lines;
    std::string joined;
    for (std::size_t at = 0; at < text.size();) {
        const std::string line = text.c_str() + at;  // std::string ends with a NUL of its own
        at += line.size() + 1;
        if (line.empty() || std::find(lines.begin(), lines.end(), line) != lines.end()) continue;
        joined += (lines.empty() ? "" : "; ") + line;
        lines.push_back(line);
    }
    return joined;
}

}  // namespace

std::vector<LoadedObject> loaded_objects() {
    std::vector<LoadedObject> objects;
    dl_iterate_phdr(remember, &objects);
    Resolver resolve;
    bool program = true;  // the first entry, which has no name
    for (LoadedObject& object : objects) {
        if (program) object.path = "/proc/self/exe";
        program = false;
        if (!object.path.empty()) object.path = resolve(object.path);
    }
    std::erase_if(objects, [](const LoadedObject& object) { return object.path.empty(); });
    return objects;
}

ElfProducers elf_producers(const std::string& path) {
    const File file(path.c_str());
    ElfW(Ehdr) header;
    ElfProducers found;
    constexpr unsigned char kClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
    constexpr unsigned char kOrder = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
    if (!file.read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != kClass || header.e_ident[EI_DATA] != kOrder ||
        header.e_shentsize != sizeof(ElfW(Shdr)) || header.e_shnum > kMostSections ||
        header.e_shstrndx >= header.e_shnum) {
        return found;
    }
    std::vector<ElfW(Shdr)> sections(header.e_shnum);
    if (!file.read(header.e_shoff, sections.data(), sections.size() * sizeof(ElfW(Shdr)))) return found;
    const ElfW(Shdr)& names = sections[header.e_shstrndx];
    std::string text(std::min<std::uint64_t>(names.sh_size, kLongestSection), '\0');
    if (!file.read(names.sh_offset, text.data(), text.size())) return found;
    for (const ElfW(Shdr) & section : sections) {
        if (section.sh_name >= text.size()) continue;
        const std::string_view name = text.c_str() + section.sh_name;
        if (name == ".comment") found.compilers = lines_of(file, section);
        if (name == ".GCC.command.line") found.switches = lines_of(file, section);
    }
    return found;
}

}  // namespace twinrun
