# What whoever compiles or links the core gets of it, as PRIVATE, PUBLIC or INTERFACE: its rooms, the core that is built here, and one
# that another build left.
function(twinrun_core_usage target visibility)
    target_include_directories(${target} ${visibility} "${PROJECT_SOURCE_DIR}/src/core")
    target_compile_definitions(${target} ${visibility} TWINRUN_VERSION="${PROJECT_VERSION}")
    target_link_libraries(${target} ${visibility} Threads::Threads)
    if(TWINRUN_X86)
        target_compile_definitions(${target} ${visibility} TWINRUN_X86=1)
    endif()
    if(TARGET Liburing::liburing)
        target_compile_definitions(${target} ${visibility} TWINRUN_HAVE_URING=1)
    endif()
    if(target STREQUAL "twinrun_core")
        add_library(twinrun::core ALIAS twinrun_core)
    endif()
endfunction()

# Of libtwinrun.so.
function(twinrun_library_usage visibility)
    add_library(twinrun::twinrun ALIAS twinrun)
    target_include_directories(twinrun ${visibility}
        "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
endfunction()
