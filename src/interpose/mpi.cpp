// Calls of MPI, without mpi.h: one library for MPICH's ABI, Open MPI's and the standard one of MPI
// 5.
//
// Handles are int in MPICH and pointers in the others, and counts are int. On x86-64 and on 64-bit
// ARM under Linux each integer or pointer takes one register or one slot of 8 bytes on the stack,
// whatever its size, so a wrapper that declares them all as std::intptr_t passes on what it got,
// bit by bit. The upper half of an int's slot is undefined: it is cut off before it is used.
// Nothing wrapped takes or returns a floating-point number or a structure.
//
// Fortran: arguments are addresses; the one of the error code follows, and lengths of character
// arguments after it (up to two, passed on if there are any). Entries with one underscore
// (gfortran, Intel, NVIDIA, flang) and those of mpi_f08 in Open MPI are wrapped.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

#include "interpose/raw.hpp"
#include "interpose/wrap.hpp"

#if !((defined(__x86_64__) && defined(__LP64__)) || (defined(__aarch64__) && !defined(__ILP32__)))
#error "how arguments are passed is known for x86-64 and 64-bit ARM only"
#endif

using namespace twinrun::interpose;

using Word = std::intptr_t;

namespace {

enum class Kind { none, plain, rooted, in_place, vector };

// How the bytes of a call are computed: see mpi_calls.inc.
struct Shape {
    Kind kind;
    int count, type, a, b;
};

constexpr int kError = 16;  // MPI_ERR_OTHER of Open MPI; not MPI_SUCCESS in any

constinit Next<int(Word, int*)> g_type_size{"PMPI_Type_size", find_mpi};
constinit Next<int(Word, int*)> g_comm_rank{"PMPI_Comm_rank", find_mpi};
constinit Next<int(Word, int*)> g_comm_size{"PMPI_Comm_size", find_mpi};
constinit Next<int(Word, int*)> g_remote_size{"PMPI_Comm_remote_size", find_mpi};
constinit Next<int(Word, int*)> g_test_inter{"PMPI_Comm_test_inter", find_mpi};
constinit Next<int(char*, int*)> g_version{"PMPI_Get_library_version", find_mpi};
constinit Next<Word(int)> g_type_f2c{"PMPI_Type_f2c", find_mpi};
constinit Next<Word(int)> g_comm_f2c{"PMPI_Comm_f2c", find_mpi};

enum class Abi { unknown, mpich, open_mpi, standard };

Abi find_abi(Word& world) {
    if (void* handle = find_mpi_variable("ompi_mpi_comm_world")) {
        world = reinterpret_cast<Word>(handle);
        return Abi::open_mpi;
    }
    void* size = reinterpret_cast<void*>(g_comm_size.get());
    Dl_info object{};
    if (size != nullptr && dladdr(size, &object) != 0 && object.dli_fname != nullptr &&
        std::strstr(object.dli_fname, "libmpi_abi") != nullptr) {
        world = 0x101;
        return Abi::standard;
    }
    // The ABI that MPICH and its descendants share.
    if (auto* version = g_version.get()) {
        char text[8192] = {};
        int length = 0;
        if (version(text, &length) == 0) {
            text[sizeof text - 1] = 0;
            for (const char* name : {"MPICH", "Intel(R) MPI", "MVAPICH", "ParaStation"}) {
                if (std::strstr(text, name) != nullptr) {
                    world = 0x44000000;
                    return Abi::mpich;
                }
            }
        }
    }
    return Abi::unknown;
}

bool is_in_place(Word buffer) { return buffer == 1 || buffer == -1; }

// The same in Fortran, where it is the address of a variable.
bool is_fortran_in_place(Word buffer) {
    static constinit Next<char> open_mpi{"mpi_fortran_in_place_", find_mpi_variable};
    static constinit Next<Word> mpich{"MPIR_F_MPI_IN_PLACE", find_mpi_variable};
    const auto* here = open_mpi.get();
    const auto* there = mpich.get();
    return (here != nullptr && buffer == reinterpret_cast<Word>(here)) ||
           (there != nullptr && buffer == *there);
}

std::uint64_t size_of(Word type) {
    auto* type_size = g_type_size.get();
    int size = 0;
    return type_size != nullptr && type_size(type, &size) == 0 && size > 0 ? static_cast<std::uint64_t>(size)
                                                                           : 0;
}

// The sum of a list with one number for each rank of a communicator. An intercommunicator has two
// groups: the list is for the own or for the other one.
template <typename Count>
std::uint64_t sum_of(const Count* counts, Word communicator, bool own_group) {
    auto* comm_size = g_comm_size.get();
    auto* test_inter = g_test_inter.get();
    auto* remote_size = g_remote_size.get();
    int inter = 0, size = 0;
    if (comm_size == nullptr || test_inter == nullptr || remote_size == nullptr) return 0;
    if (test_inter(communicator, &inter) != 0) return 0;
    if ((inter != 0 && !own_group ? remote_size : comm_size)(communicator, &size) != 0) return 0;
    std::uint64_t sum = 0;
    for (int i = 0; i < size; ++i)
        sum += moved(counts[i]);
    return sum;
}

// In MPI_Reduce_scatter, the only list without a buffer that may be MPI_IN_PLACE, all entries are
// for the own group.
bool is_of_own_group(const Shape& shape) { return shape.a < 0; }

template <typename Count>
std::uint64_t bytes_of(const Shape& shape, const Word* a) {
    if (shape.kind == Kind::none) return 0;
    if (shape.kind == Kind::rooted && static_cast<int>(a[shape.a]) < 0) return 0;
    if (shape.kind == Kind::in_place && is_in_place(a[shape.a])) return 0;
    if (shape.kind == Kind::in_place && shape.b > 0 && static_cast<int>(a[shape.b]) < 0) return 0;
    if (shape.kind == Kind::vector) {
        if (shape.a >= 0 && is_in_place(a[shape.a])) return 0;
        const std::uint64_t sum =
            sum_of(reinterpret_cast<const Count*>(a[shape.count]), a[shape.b], is_of_own_group(shape));
        return sum == 0 ? 0 : sum * size_of(a[shape.type]);
    }
    const auto count = static_cast<Count>(a[shape.count]);
    return count <= 0 ? 0 : moved(count) * size_of(a[shape.type]);
}

int integer_at(Word address) { return *reinterpret_cast<const int*>(address); }

// Reads the error code from its address, which mpi_f08 may leave out. After an error the arguments
// may be invalid, so MPI is not asked about them.
bool is_fortran_success(Word error) { return error == 0 || integer_at(error) == 0; }

std::uint64_t fortran_bytes_of(const Shape& shape, const Word* a) {
    if (shape.kind == Kind::none) return 0;
    if (shape.kind == Kind::rooted && integer_at(a[shape.a]) < 0) return 0;
    if (shape.kind == Kind::in_place && is_fortran_in_place(a[shape.a])) return 0;
    if (shape.kind == Kind::in_place && shape.b > 0 && integer_at(a[shape.b]) < 0) return 0;
    // MPICH's handles are the same integers in both languages.
    const auto type = [&] {
        const int handle = integer_at(a[shape.type]);
        auto* convert = g_type_f2c.get();
        return size_of(convert != nullptr ? convert(handle) : handle);
    };
    if (shape.kind == Kind::vector) {
        if (shape.a >= 0 && is_fortran_in_place(a[shape.a])) return 0;
        const int handle = integer_at(a[shape.b]);
        auto* convert = g_comm_f2c.get();
        const std::uint64_t sum =
            sum_of(reinterpret_cast<const int*>(a[shape.count]),
                   convert != nullptr ? convert(handle) : handle, is_of_own_group(shape));
        return sum == 0 ? 0 : sum * type();
    }
    const int count = integer_at(a[shape.count]);
    return count <= 0 ? 0 : moved(count) * type();
}

void lead_large_counts();

// Called when MPI is initialised: finds the rank.
void learn_rank() {
    if (g_state.mpi || g_state.mode.load() == 0) return;
    Word world = 0;
    int rank = -1, ranks = -1;
    if (find_abi(world) != Abi::unknown) {
        auto* comm_rank = g_comm_rank.get();
        auto* comm_size = g_comm_size.get();
        if (comm_rank == nullptr || comm_size == nullptr || comm_rank(world, &rank) != 0 ||
            comm_size(world, &ranks) != 0) {
            rank = ranks = -1;
        }
    } else {
        rank = g_state.launcher_rank;
    }
    set_rank(rank, ranks);
    lead_large_counts();
}

bool is_fortran_inside(const Block* block) { return block != nullptr && block->fortran != 0; }

}  // namespace

// A call from C. Inside a Fortran wrapper it is the same call, which the Fortran wrapper counts.
#define TWR_C_BODY(call, symbol, Count, shape_kind, count_, type_, a_, b_, parameter_types, argument_list) \
    static constinit Next<int parameter_types> next{symbol, find_mpi};                                     \
    auto* real = next.get();                                                                               \
    if (real == nullptr) return kError;                                                                    \
    if (is_fortran_inside(t_block)) return real argument_list;                                             \
    Scope scope(Call::call);                                                                               \
    const int result = real argument_list;                                                                 \
    scope.stop();                                                                                          \
    std::uint64_t bytes = 0;                                                                               \
    if (Kind::shape_kind != Kind::none && result == 0 && t_block != nullptr) {                             \
        const Word arguments[] = {TWR_LIST argument_list};                                                 \
        bytes = bytes_of<Count>(Shape{Kind::shape_kind, count_, type_, a_, b_}, arguments);                \
    }                                                                                                      \
    scope.end(bytes);                                                                                      \
    return result

#define TWR_LIST(...) __VA_ARGS__

// Parameters and arguments by number.
#define TWR_P1 Word a0
#define TWR_P2 TWR_P1, Word a1
#define TWR_P3 TWR_P2, Word a2
#define TWR_P4 TWR_P3, Word a3
#define TWR_P5 TWR_P4, Word a4
#define TWR_P6 TWR_P5, Word a5
#define TWR_P7 TWR_P6, Word a6
#define TWR_P8 TWR_P7, Word a7
#define TWR_P9 TWR_P8, Word a8
#define TWR_P10 TWR_P9, Word a9
#define TWR_P11 TWR_P10, Word a10
#define TWR_P12 TWR_P11, Word a11
#define TWR_P13 TWR_P12, Word a12
#define TWR_P14 TWR_P13, Word a13
#define TWR_P15 TWR_P14, Word a14
#define TWR_P16 TWR_P15, Word a15
#define TWR_A1 a0
#define TWR_A2 TWR_A1, a1
#define TWR_A3 TWR_A2, a2
#define TWR_A4 TWR_A3, a3
#define TWR_A5 TWR_A4, a4
#define TWR_A6 TWR_A5, a5
#define TWR_A7 TWR_A6, a6
#define TWR_A8 TWR_A7, a7
#define TWR_A9 TWR_A8, a8
#define TWR_A10 TWR_A9, a9
#define TWR_A11 TWR_A10, a10
#define TWR_A12 TWR_A11, a11
#define TWR_A13 TWR_A12, a12
#define TWR_A14 TWR_A13, a13
#define TWR_A15 TWR_A14, a14
#define TWR_A16 TWR_A15, a15
// In Fortran there are also the error code and two lengths.
#define TWR_FP1 TWR_P4
#define TWR_FP2 TWR_P5
#define TWR_FP3 TWR_P6
#define TWR_FP4 TWR_P7
#define TWR_FP5 TWR_P8
#define TWR_FP6 TWR_P9
#define TWR_FP7 TWR_P10
#define TWR_FP8 TWR_P11
#define TWR_FP9 TWR_P12
#define TWR_FP10 TWR_P13
#define TWR_FP11 TWR_P14
#define TWR_FP12 TWR_P15
#define TWR_FP13 TWR_P16
#define TWR_FA1 TWR_A4
#define TWR_FA2 TWR_A5
#define TWR_FA3 TWR_A6
#define TWR_FA4 TWR_A7
#define TWR_FA5 TWR_A8
#define TWR_FA6 TWR_A9
#define TWR_FA7 TWR_A10
#define TWR_FA8 TWR_A11
#define TWR_FA9 TWR_A12
#define TWR_FA10 TWR_A13
#define TWR_FA11 TWR_A14
#define TWR_FA12 TWR_A15
#define TWR_FA13 TWR_A16

#define TWR_MPI(name, lower, group, arguments, kind, count, type, a, b)                        \
    TWR_WRAP int MPI_##name(TWR_P##arguments) {                                                \
        TWR_C_BODY(MPI_##name, "MPI_" #name, int, kind, count, type, a, b, (TWR_P##arguments), \
                   (TWR_A##arguments));                                                        \
    }
#include "interpose/mpi_calls.inc"
#undef TWR_MPI

// ---- large counts
//
// MPI_Send_c and similar functions are not symbols of this library. Otherwise programs with weak
// references to them (mpi4py) would find ours even if MPI has none. Instead, when MPI is
// initialised, relocation entries of programs and libraries that point to MPI's functions are
// redirected here. Objects that are loaded after MPI_Init keep theirs.

namespace {

#define TWR_MPI_LARGE(name, lower, group, arguments, kind, count, type, a, b)                                \
    int large_##name(TWR_P##arguments) {                                                                     \
        TWR_C_BODY(MPI_##name, "MPI_" #name "_c", std::int64_t, kind, count, type, a, b, (TWR_P##arguments), \
                   (TWR_A##arguments));                                                                      \
    }
#include "interpose/mpi_calls.inc"
#undef TWR_MPI_LARGE

struct Large {
    const char* name;
    void* wrapper;
};

const Large kLarge[] = {
#define TWR_MPI_LARGE(name, lower, group, arguments, kind, count, type, a, b) \
    {"MPI_" #name "_c", reinterpret_cast<void*>(&large_##name)},
#include "interpose/mpi_calls.inc"
#undef TWR_MPI_LARGE
};

#if defined(__x86_64__)
constexpr std::uint32_t kEntries[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#else
constexpr std::uint32_t kEntries[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#endif

// Writes to a relocation entry, which the loader may have made read-only.
void lead(void** entry, void* to, bool is_read_only) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    auto* start = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(entry) & ~(page - 1));
    if (is_read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return;
    __atomic_store_n(entry, to, __ATOMIC_RELEASE);
    if (is_read_only) mprotect(start, page, PROT_READ);
}

bool g_has_large[sizeof kLarge / sizeof kLarge[0]];  // whether MPI has the function

void lead_entries(const dl_phdr_info& object, const ElfW(Rela) * relocations, std::size_t count,
                  const ElfW(Sym) * symbols, const char* names, std::uintptr_t read_only,
                  std::uintptr_t read_only_end) {
    for (std::size_t i = 0; i < count; ++i) {
        const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(relocations[i].r_info));
        if (type != kEntries[0] && type != kEntries[1]) continue;
        const char* name = names + symbols[ELF64_R_SYM(relocations[i].r_info)].st_name;
        if (std::strncmp(name, "MPI_", 4) != 0) continue;
        for (std::size_t k = 0; k < sizeof kLarge / sizeof kLarge[0]; ++k) {
            if (!g_has_large[k] || std::strcmp(name, kLarge[k].name) != 0) continue;
            const std::uintptr_t at = object.dlpi_addr + relocations[i].r_offset;
            auto** entry = reinterpret_cast<void**>(at);
            if (*entry != nullptr) lead(entry, kLarge[k].wrapper, at >= read_only && at < read_only_end);
        }
    }
}

int lead_object(dl_phdr_info* object, std::size_t, void* own) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const ElfW(Dyn)* dynamic = nullptr;
    std::uintptr_t read_only = 0, read_only_end = 0;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
        const auto& part = object->dlpi_phdr[i];
        const std::uintptr_t at = object->dlpi_addr + part.p_vaddr;
        if (part.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(at);
        if (part.p_type == PT_GNU_RELRO) {
            // As in the loader: a last page that is only partly covered stays writable.
            read_only = at & ~(page - 1);
            read_only_end = (at + part.p_memsz) & ~(page - 1);
        }
        // Skips this library and MPI's libraries, whose calls among themselves are not calls of the
        // program.
        if (part.p_type == PT_LOAD && reinterpret_cast<std::uintptr_t>(own) - at < part.p_memsz) return 0;
    }
    if (dynamic == nullptr || std::strstr(object->dlpi_name, "libmpi") != nullptr) return 0;
    const ElfW(Sym)* symbols = nullptr;
    const char* names = nullptr;
    const ElfW(Rela) * tables[2] = {};
    std::size_t sizes[2] = {};
    bool rela = true;
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
        std::uintptr_t at = dynamic->d_un.d_ptr;
        // If the loader did not relocate the address.
        if (at < object->dlpi_addr) at += object->dlpi_addr;
        switch (dynamic->d_tag) {
            case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(at); break;
            case DT_STRTAB: names = reinterpret_cast<const char*>(at); break;
            case DT_JMPREL: tables[0] = reinterpret_cast<const ElfW(Rela)*>(at); break;
            case DT_PLTRELSZ: sizes[0] = dynamic->d_un.d_val; break;
            case DT_PLTREL: rela = dynamic->d_un.d_val == DT_RELA; break;
            case DT_RELA: tables[1] = reinterpret_cast<const ElfW(Rela)*>(at); break;
            case DT_RELASZ: sizes[1] = dynamic->d_un.d_val; break;
            default: break;
        }
    }
    if (symbols == nullptr || names == nullptr || !rela) return 0;
    for (int i = 0; i < 2; ++i) {
        if (tables[i] == nullptr) continue;
        lead_entries(*object, tables[i], sizes[i] / sizeof(ElfW(Rela)), symbols, names, read_only,
                     read_only_end);
    }
    return 0;
}

void lead_large_counts() {
    if (find_mpi("MPI_Send_c") == nullptr) return;
    // Looked up before, because the callback of dl_iterate_phdr must not call the loader.
    for (std::size_t k = 0; k < sizeof kLarge / sizeof kLarge[0]; ++k)
        g_has_large[k] = find_mpi(kLarge[k].name) != nullptr;
    dl_iterate_phdr(lead_object, reinterpret_cast<void*>(&lead_large_counts));
}

}  // namespace

#define TWR_FORTRAN_BODY(call, symbol, arguments, kind, count, type, a, b)       \
    static constinit Next<void(TWR_FP##arguments)> next{symbol, find_mpi};       \
    auto* real = next.get();                                                     \
    if (real == nullptr) return;                                                 \
    Block* block = own_block();                                                  \
    if (block == nullptr || block->fortran != 0) return real(TWR_FA##arguments); \
    Scope scope(Call::MPI_##call);                                               \
    ++block->fortran;                                                            \
    real(TWR_FA##arguments);                                                     \
    scope.stop();                                                                \
    std::uint64_t bytes = 0;                                                     \
    const Word list[] = {TWR_FA##arguments};                                     \
    if (Kind::kind != Kind::none && is_fortran_success(list[arguments])) {       \
        bytes = fortran_bytes_of(Shape{Kind::kind, count, type, a, b}, list);    \
    }                                                                            \
    --block->fortran;                                                            \
    scope.end(bytes)

#define TWR_MPI(name, lower, group, arguments, kind, count, type, a, b)                    \
    TWR_WRAP void mpi_##lower##_(TWR_FP##arguments) {                                      \
        TWR_FORTRAN_BODY(name, "mpi_" #lower "_", arguments, kind, count, type, a, b);     \
    }                                                                                      \
    TWR_WRAP void mpi_##lower##_f08_(TWR_FP##arguments) {                                  \
        TWR_FORTRAN_BODY(name, "mpi_" #lower "_f08_", arguments, kind, count, type, a, b); \
    }
#include "interpose/mpi_calls.inc"
#undef TWR_MPI

// ---- beginning and end

namespace {

template <typename Function>
int begun(Call call, Function&& function) {
    if (is_fortran_inside(t_block)) return function();
    Scope scope(call);
    const int result = function();
    scope.stop();
    if (result == 0) learn_rank();
    scope.end();
    return result;
}

template <typename Function>
void counted_in_fortran(Call call, bool begins, Function&& function) {
    Block* block = own_block();
    if (block == nullptr || block->fortran != 0) return function();
    Scope scope(call);
    ++block->fortran;
    function();
    scope.stop();
    if (begins) learn_rank();
    --block->fortran;
    scope.end();
}

}  // namespace

TWR_WRAP int MPI_Init(Word a0, Word a1) {
    static constinit Next<int(Word, Word)> next{"MPI_Init", find_mpi};
    auto* real = next.get();
    if (real == nullptr) return kError;
    return begun(Call::MPI_Init, [&] { return real(a0, a1); });
}
TWR_WRAP int MPI_Init_thread(Word a0, Word a1, Word a2, Word a3) {
    static constinit Next<int(Word, Word, Word, Word)> next{"MPI_Init_thread", find_mpi};
    auto* real = next.get();
    if (real == nullptr) return kError;
    return begun(Call::MPI_Init_thread, [&] { return real(a0, a1, a2, a3); });
}
// After MPI_Finalize the process may be killed, or end without exit: the profile is written now,
// and again at the end.
TWR_WRAP int MPI_Finalize() {
    static constinit Next<int()> next{"MPI_Finalize", find_mpi};
    auto* real = next.get();
    if (real == nullptr) return kError;
    if (is_fortran_inside(t_block)) return real();
    Scope scope(Call::MPI_Finalize);
    const int result = real();
    scope.end();
    write_profile();
    return result;
}
TWR_WRAP int MPI_Abort(Word a0, Word a1) {
    static constinit Next<int(Word, Word)> next{"MPI_Abort", find_mpi};
    auto* real = next.get();
    if (real == nullptr) return kError;
    Scope scope(Call::MPI_Abort);
    scope.end();
    finish_profile();
    return real(a0, a1);
}

#define TWR_FORTRAN_INIT(symbol, call, parameters, arguments)                                \
    TWR_WRAP void symbol(parameters) {                                                       \
        static constinit Next<void(parameters)> next{#symbol, find_mpi};                     \
        auto* real = next.get();                                                             \
        if (real != nullptr) counted_in_fortran(Call::call, true, [&] { real(arguments); }); \
    }
#define TWR_COMMA ,
TWR_FORTRAN_INIT(mpi_init_, MPI_Init, Word a0, a0)
TWR_FORTRAN_INIT(mpi_init_f08_, MPI_Init, Word a0, a0)
TWR_FORTRAN_INIT(mpi_init_thread_, MPI_Init_thread, Word a0 TWR_COMMA Word a1 TWR_COMMA Word a2,
                 a0 TWR_COMMA a1 TWR_COMMA a2)
TWR_FORTRAN_INIT(mpi_init_thread_f08_, MPI_Init_thread, Word a0 TWR_COMMA Word a1 TWR_COMMA Word a2,
                 a0 TWR_COMMA a1 TWR_COMMA a2)

#define TWR_FORTRAN_FINALIZE(symbol)                                      \
    TWR_WRAP void symbol(Word a0) {                                       \
        static constinit Next<void(Word)> next{#symbol, find_mpi};        \
        auto* real = next.get();                                          \
        if (real == nullptr) return;                                      \
        counted_in_fortran(Call::MPI_Finalize, false, [&] { real(a0); }); \
        write_profile();                                                  \
    }
TWR_FORTRAN_FINALIZE(mpi_finalize_)
TWR_FORTRAN_FINALIZE(mpi_finalize_f08_)
#define TWR_FORTRAN_ABORT(symbol)                                              \
    TWR_WRAP void symbol(Word a0, Word a1, Word a2) {                          \
        static constinit Next<void(Word, Word, Word)> next{#symbol, find_mpi}; \
        auto* real = next.get();                                               \
        finish_profile();                                                      \
        if (real != nullptr) real(a0, a1, a2);                                 \
    }
TWR_FORTRAN_ABORT(mpi_abort_)
TWR_FORTRAN_ABORT(mpi_abort_f08_)
