# What every target is compiled with. The target twinrun_warnings is for our own code only: generated and foreign sources
# (nanobind) do not link it.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# All programs in one place: build/<preset>/bin.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

# Every backend must give the same bits: a fused a*b+c in one of them would not. (GCC contracts by default.)
add_compile_options($<$<NOT:$<COMPILE_LANGUAGE:Fortran>>:-ffp-contract=off>)

if(TWINRUN_SANITIZE)
    add_compile_options(-fsanitize=${TWINRUN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
    add_link_options(-fsanitize=${TWINRUN_SANITIZE})
endif()

if(TWINRUN_COVERAGE)
    add_compile_options(--coverage -fprofile-update=atomic)
    add_link_options(--coverage)
endif()

add_library(twinrun_warnings INTERFACE)
# Designated initializers name what they set on purpose and leave the rest to its default.
target_compile_options(twinrun_warnings INTERFACE -Wall -Wextra -Wconversion -Wshadow -Wno-missing-field-initializers)
# GCC 12 sees an overlap in operator+ of a literal and a std::string, where there is none (its bug 105651).
target_compile_options(twinrun_warnings INTERFACE
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
if(TWINRUN_WERROR)
    # Except those that come from the optimizer, and depend on what it inlined of the standard library.
    target_compile_options(twinrun_warnings INTERFACE
        -Werror -Wno-error=array-bounds -Wno-error=nonnull
        $<$<CXX_COMPILER_ID:GNU>:-Wno-error=maybe-uninitialized -Wno-error=stringop-overflow -Wno-error=stringop-overread
            -Wno-error=dangling-pointer -Wno-error=free-nonheap-object -Wno-error=restrict>
    )
endif()

# twinrun_unity(<target>): compiles the target's sources a dozen at a time, where TWINRUN_UNITY is set. Most of what a source costs are
# the headers of the standard library, GoogleTest and JSON, and the templates that each source makes of them: nineteen sources of
# tests take 83 s one by one, and 19 s as one. Names in anonymous namespaces must then differ within a room and within its tests.
# Sources with options of their own (kernels) stay apart. Without it, a source that lacks an include shows. A dozen, so that a
# change of one source is compiled within 20 s.
function(twinrun_unity target)
    if(TWINRUN_UNITY)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    endif()
endfunction()

# twinrun_test_program(<target>): the target's own sources are optimized as for a debugger. What is tested is optimized in its library. Such
# tests compile in three quarters of the time that -O1 takes, and run about as fast; with -O0 some would not.
function(twinrun_test_program target)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Og>)
endfunction()

# GCC looks for garbage whenever its memory has doubled, from 128 MB on: a tenth of its time on a dozen sources, which need 0.5 GB in
# any case. What it makes of them is the same.
if(TWINRUN_UNITY)
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=500000>)
endif()

# The kernels written for x86-64 extensions. Elsewhere they are left out, and TWINRUN_X86 is not defined.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(TWINRUN_X86 ON)
else()
    set(TWINRUN_X86 OFF)
endif()
set(TWINRUN_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(TWINRUN_FLAGS_avx512 -mavx512f -mavx512dq -mavx512vl -mavx512bw -mavx512ifma -mavx512vnni -mbmi2)

# twinrun_kernel_sources(<list variable>): sets the flags of *_avx2.cpp and *_avx512.cpp in the list, or takes them out of
# it on a machine that is not x86-64. Call it in the folder that creates the target: source properties are per folder.
function(twinrun_kernel_sources list_name)
    set(sources ${${list_name}})
    foreach(isa IN ITEMS avx2 avx512)
        set(kernels ${sources})
        list(FILTER kernels INCLUDE REGEX "_${isa}\\.cpp$")
        if(NOT kernels)
            continue()
        endif()
        if(TWINRUN_X86)
            set_property(SOURCE ${kernels} APPEND PROPERTY COMPILE_OPTIONS ${TWINRUN_FLAGS_${isa}})
        else()
            list(REMOVE_ITEM sources ${kernels})
        endif()
    endforeach()
    set(${list_name} ${sources} PARENT_SCOPE)
endfunction()
