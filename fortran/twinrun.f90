! twinrun, from Fortran 2008: protect arrays once, capture them at steps.
!
!     use twinrun
!     type(twr_settings_t) :: settings
!     type(twr_run_t) :: run
!     real(real64), allocatable, target :: x(:,:)
!     ...
!     call twr_set(settings, "atol", "1e-6")
!     call twr_open(run, "runs/a", settings)
!     call twr_protect(run, "x", x)
!     do step = 1, steps
!       ...
!       call twr_capture(run, step)
!     end do
!     call twr_close(run)
!
! What the procedures do, and when all ranks must call them, is said in include/twinrun/twinrun.h; this module adds nothing
! of its own but Fortran's manners:
!
!   stat, errmsg   As in allocate: stat becomes 0 or one of the codes below (twr_diverged and twr_step_lost too, after which
!                  the step was taken), errmsg what went wrong. Without stat anything but 0 stops the program with that text.
!   arrays         Any rank from 0 to 7, contiguous or not. They must have the target attribute (or be what a pointer points
!                  to), and stay where they are: after reallocation, protect the array again.
!   order          Items are kept in Fortran's order, column-major.
!   global place   global_offset counts from 0: the place of the array's first item in the array of all ranks.
module twinrun
  use, intrinsic :: iso_c_binding, only: c_associated, c_bool, c_char, c_double, c_f_pointer, c_funloc, c_funptr, c_int, &
      c_int64_t, c_intptr_t, c_loc, c_null_char, c_null_ptr, c_ptr, c_size_t
  use, intrinsic :: iso_fortran_env, only: error_unit, int8, int16, int32, int64, real32, real64
  implicit none
  private

  ! Values of stat: twr_status of the C interface.
  integer, parameter, public :: &
      twr_ok = 0, twr_error_invalid_argument = 1, twr_error_not_found = 2, twr_error_io = 3, twr_error_no_space = 4, &
      twr_error_damaged = 5, twr_error_unsupported = 6, twr_error_stale = 7, twr_error_mismatch = 8, &
      twr_error_out_of_memory = 9, twr_error_interrupted = 10, twr_error_internal = 11, twr_error_other_rank = 12, &
      twr_diverged = 100, twr_step_lost = 101, twr_different = 102, twr_incomparable = 103

  ! The version of this module; twr_version() and twr_version_number() have that of the library.
  integer, parameter, public :: &
      twr_version_major = 0, twr_version_minor = 1, twr_version_patch = 0
  ! For comparisons: 10000 major + 100 minor + patch.
  integer, parameter, public :: &
      twr_module_version = 10000 * twr_version_major + 100 * twr_version_minor + twr_version_patch

  ! Types of elements, for twr_protect_address.
  integer, parameter, public :: &
      twr_f16 = 1, twr_bf16 = 2, twr_f32 = 3, twr_f64 = 4, twr_i8 = 5, twr_i16 = 6, twr_i32 = 7, twr_i64 = 8, &
      twr_u8 = 9, twr_u16 = 10, twr_u32 = 11, twr_u64 = 12, twr_bool = 13, twr_c64 = 14, twr_c128 = 15

  ! Where memory lies, for twr_protect_address; or a device's number.
  integer, parameter, public :: twr_host = -1, twr_detect = -2, twr_detect_device = -3

  ! A run. Not to be copied: pass it on.
  type, public :: twr_run_t
    type(c_ptr) :: handle = c_null_ptr  ! the twr_run* of the C interface
    type(listener_t), pointer, private :: listener => null()
  end type

  ! What the C interface calls back with, as its context.
  type :: listener_t
    procedure(twr_divergence_callback), pointer, nopass :: call => null()
  end type

  ! Settings of a run, by the names in docs/reference/capture.md. twr_open reports wrong ones.
  type, public :: twr_settings_t
    private
    type(setting_t), allocatable :: given(:)
  end type
  type :: setting_t
    character(:), allocatable :: name  ! not allocated: value is the name of a file
    character(:), allocatable :: value
  end type

  ! What the last capture did and cost this rank.
  type, public :: twr_report_t
    integer(int64) :: step = 0
    real(real64) :: seconds = 0         ! that it blocked the caller
    real(real64) :: waited_seconds = 0  ! of these: waited for memory that earlier steps held
    integer(int64) :: data_bytes = 0    ! of the arrays
    integer(int64) :: staged_bytes = 0  ! memory now held by steps under way
    logical :: diverged = .false.       ! it is known to differ from the reference
    integer(int64) :: pending_steps = 0 ! now: captured, and neither committed by this rank nor lost
  end type

  ! Where a step first differs from the reference's.
  type, public :: twr_divergence_t
    integer(int64) :: step = 0
    integer :: rank = 0
    character(:), allocatable :: field
    integer(int64) :: first_item = 0  ! of the flattened array, from 0: the first chunk not proven equal begins here
    integer(int64) :: chunks = 0      ! of this field that are not proven equal
    integer(int64) :: chunks_in_all = 0
    character(:), allocatable :: reason  ! "", or why the field could not be compared
  end type

  ! What two runs are compared by; negative: the tolerance that a field was captured for.
  type, public :: twr_compare_options_t
    real(real64) :: atol = -1
    real(real64) :: rtol = -1
    integer(int64) :: ulps = -1
    logical :: nan_differs = .false.
    logical :: tolerate_integers = .false.
    logical :: common = .false.  ! what only one run has is left out, and noted
    logical :: direct = .false.  ! every element is read
    integer :: device = twr_detect
    integer :: threads = 0
    integer(int64) :: memory_bytes = 0
  end type

  ! What comparing two runs found. Not to be copied: pass it on. It ends with twr_comparison_destroy.
  type, public :: twr_comparison_t
    type(c_ptr) :: handle = c_null_ptr  ! the twr_comparison* of the C interface
  end type

  type, public :: twr_comparison_report_t
    integer :: verdict = twr_incomparable  ! twr_ok: the same; twr_different; twr_incomparable
    integer(int64) :: fields = 0           ! entries: one for each step, rank and field that was compared
    integer(int64) :: different_fields = 0
    integer(int64) :: first_field = 0      ! number of the first entry that differs, from 1; 0: none does
    integer(int64) :: different = 0        ! elements
    integer(int64) :: problems = 0
    integer(int64) :: notes = 0
    integer(int64) :: bytes_compared = 0
    integer(int64) :: bytes_read = 0
    real(real64) :: seconds = 0
  end type

  ! One field at one step and rank.
  type, public :: twr_field_report_t
    integer(int64) :: step = 0
    integer :: rank = 0
    integer :: dtype = 0
    character(:), allocatable :: field
    integer(int64), allocatable :: shape(:)
    real(real64) :: atol = 0
    real(real64) :: rtol = 0
    integer(int64) :: elements = 0
    integer(int64) :: different = 0
    integer(int64) :: infinite = 0
    integer(int64), allocatable :: first_index(:)  ! from 1, as Fortran counts; not allocated: none is known
    real(real64) :: first_a = 0                    ! rounded for integers of 64 bits
    real(real64) :: first_b = 0
    real(real64) :: first_abs_diff = 0
    real(real64) :: max_abs_diff = 0               ! NaN: not even a bound is known
    logical :: max_abs_diff_is_bound = .false.
    real(real64) :: max_rel_diff = 0
    real(real64) :: rms_diff = 0
    integer(int64) :: elements_read = 0
    character(:), allocatable :: method
    ! .false.: exact digests differ, and the data is not at hand. Then `different` counts one element of each chunk
    ! that differs; the first of these chunks reaches from one index to the other, both within.
    logical :: different_is_exact = .true.
    integer(int64), allocatable :: first_chunk_begin(:), first_chunk_end(:)
  end type

  ! An array in memory to compare: dense, in column-major order.
  type, public :: twr_array_t
    character(:), allocatable :: name
    type(c_ptr) :: address = c_null_ptr  ! c_loc(x)
    integer :: dtype = 0                 ! twr_f64, ...
    integer(int64), allocatable :: shape(:)  ! not allocated: one value
  end type

  abstract interface
    ! Must not call procedures of this run. Unless stop_on_divergence is set, it is called from another thread.
    subroutine twr_divergence_callback(divergence)
      import :: twr_divergence_t
      type(twr_divergence_t), intent(in) :: divergence
    end subroutine
  end interface
  public :: twr_divergence_callback

  public :: twr_set, twr_load, twr_open, twr_close, twr_protect, twr_protect_address, twr_unprotect, twr_capture, twr_wait, &
      twr_last_report, twr_latest, twr_stored_bytes, twr_restore, twr_on_divergence, twr_error_message, twr_status_name, &
      twr_version, twr_version_number, twr_report_json
  public :: twr_compare, twr_compare_arrays, twr_compare_step, twr_comparison_destroy, twr_comparison_facts, &
      twr_comparison_field, twr_comparison_problem, twr_comparison_note, twr_comparison_verdict, twr_comparison_json
  ! For modules that open runs in other ways (twinrun_mpi).
  public :: twr_make_settings, twr_drop_settings

  interface twr_set
    module procedure set_text, set_real, set_integer, set_integer64, set_logical
  end interface

  ! call twr_protect(run, name, array [, atol, rtol, global_shape, global_offset, ids, stat, errmsg])
  !
  !   array          real(real32), real(real64), integer(int8), (int16), (int32), (int64), complex(real32), complex(real64),
  !                  logical, logical(c_bool)
  !   atol, rtol     real(real64): the array's own tolerance; one that is absent is 0
  !   global_shape, global_offset  integer(int64), one a dimension: both or neither
  !   ids            name of a protected integer array: columns (items of the last dimension) are kept in ascending order of
  !                  these IDs, whatever their order in memory
  interface twr_protect
    module procedure &
        protect_real32_0, protect_real32_1, protect_real32_2, protect_real32_3, &
        protect_real32_4, protect_real32_5, protect_real32_6, protect_real32_7, &
        protect_real64_0, protect_real64_1, protect_real64_2, protect_real64_3, &
        protect_real64_4, protect_real64_5, protect_real64_6, protect_real64_7, &
        protect_int8_0, protect_int8_1, protect_int8_2, protect_int8_3, &
        protect_int8_4, protect_int8_5, protect_int8_6, protect_int8_7
    module procedure &
        protect_int16_0, protect_int16_1, protect_int16_2, protect_int16_3, &
        protect_int16_4, protect_int16_5, protect_int16_6, protect_int16_7, &
        protect_int32_0, protect_int32_1, protect_int32_2, protect_int32_3, &
        protect_int32_4, protect_int32_5, protect_int32_6, protect_int32_7, &
        protect_int64_0, protect_int64_1, protect_int64_2, protect_int64_3, &
        protect_int64_4, protect_int64_5, protect_int64_6, protect_int64_7
    module procedure &
        protect_complex32_0, protect_complex32_1, protect_complex32_2, protect_complex32_3, &
        protect_complex32_4, protect_complex32_5, protect_complex32_6, protect_complex32_7, &
        protect_complex64_0, protect_complex64_1, protect_complex64_2, protect_complex64_3, &
        protect_complex64_4, protect_complex64_5, protect_complex64_6, protect_complex64_7
    module procedure &
        protect_logical_0, protect_logical_1, protect_logical_2, protect_logical_3, &
        protect_logical_4, protect_logical_5, protect_logical_6, protect_logical_7, &
        protect_bool_0, protect_bool_1, protect_bool_2, protect_bool_3, &
        protect_bool_4, protect_bool_5, protect_bool_6, protect_bool_7
  end interface

  interface twr_capture
    module procedure capture_int32, capture_int64
  end interface
  interface twr_restore
    module procedure restore_int32, restore_int64
  end interface

  ! ---- the C interface: include/twinrun/twinrun.h ----

  integer(c_int), parameter :: column_major = 1
  ! Beside the statuses of C: an argument has another size than the array has dimensions.
  integer(c_int), parameter :: wrong_size = -1
  ! Compilers disagree about the bits of .true.: they are kept as a number, not as what they mean.
  integer, parameter :: of_logical = merge(twr_i64, twr_i32, storage_size(.true.) == 64)

  type, bind(c) :: c_array  ! twr_array
    integer(c_size_t) :: size
    type(c_ptr) :: name
    type(c_ptr) :: data
    integer(c_int) :: dtype
    integer(c_int) :: order
    integer(c_int) :: dimensions
    type(c_ptr) :: shape
    type(c_ptr) :: strides
    type(c_ptr) :: global_shape
    type(c_ptr) :: global_offset
    real(c_double) :: atol
    real(c_double) :: rtol
    type(c_ptr) :: ids
    integer(c_int) :: device
    type(c_ptr) :: stream
  end type

  type, bind(c) :: c_compare_options  ! twr_compare_options
    integer(c_size_t) :: size
    real(c_double) :: atol
    real(c_double) :: rtol
    integer(c_int64_t) :: ulps
    integer(c_int) :: nan_differs
    integer(c_int) :: tolerate_integers
    integer(c_int) :: common
    integer(c_int) :: method
    integer(c_int) :: device
    integer(c_int) :: threads
    integer(c_int64_t) :: memory_bytes
  end type
  type, bind(c) :: c_comparison_report  ! twr_comparison_report
    integer(c_size_t) :: size
    integer(c_int) :: verdict
    integer(c_int64_t) :: fields
    integer(c_int64_t) :: different_fields
    integer(c_int64_t) :: first_field
    integer(c_int64_t) :: different
    integer(c_int64_t) :: problems
    integer(c_int64_t) :: notes
    integer(c_int64_t) :: bytes_compared
    integer(c_int64_t) :: bytes_read
    real(c_double) :: seconds
  end type
  type, bind(c) :: c_value  ! twr_value
    integer(c_int) :: dtype
    integer(c_int64_t) :: bits
  end type
  type, bind(c) :: c_field_report  ! twr_field_report
    integer(c_size_t) :: size
    integer(c_int64_t) :: step
    integer(c_int) :: rank
    integer(c_int) :: dtype
    type(c_ptr) :: field
    integer(c_int) :: dimensions
    integer(c_int) :: index_length
    type(c_ptr) :: shape
    real(c_double) :: atol
    real(c_double) :: rtol
    integer(c_int64_t) :: ulps
    integer(c_int64_t) :: elements
    integer(c_int64_t) :: bytes
    integer(c_int64_t) :: different
    integer(c_int64_t) :: infinite
    type(c_ptr) :: first_index
    type(c_value) :: first_a
    type(c_value) :: first_b
    real(c_double) :: first_abs_diff
    real(c_double) :: max_abs_diff
    integer(c_int) :: max_abs_diff_is_bound
    integer(c_int) :: rms_diff_all_is_bound
    real(c_double) :: max_abs_diff_at_least
    type(c_ptr) :: max_abs_index
    type(c_value) :: max_abs_a
    type(c_value) :: max_abs_b
    real(c_double) :: max_rel_diff
    type(c_ptr) :: max_rel_index
    real(c_double) :: rms_diff
    real(c_double) :: rms_diff_all
    integer(c_int64_t) :: elements_read
    type(c_ptr) :: method
    type(c_ptr) :: reason
    type(c_ptr) :: kind
    integer(c_int) :: different_is_exact
    type(c_ptr) :: first_chunk_begin
    type(c_ptr) :: first_chunk_end
  end type
  type, bind(c) :: c_report  ! twr_report
    integer(c_size_t) :: size
    integer(c_int64_t) :: step
    real(c_double) :: seconds
    real(c_double) :: waited_seconds
    integer(c_int64_t) :: data_bytes
    integer(c_int64_t) :: staged_bytes
    integer(c_int) :: diverged
    integer(c_int64_t) :: pending_steps
  end type

  type, bind(c) :: c_divergence  ! twr_divergence
    integer(c_size_t) :: size
    integer(c_int64_t) :: step
    integer(c_int) :: rank
    type(c_ptr) :: field
    integer(c_int64_t) :: first_item
    integer(c_int64_t) :: chunks
    integer(c_int64_t) :: chunks_in_all
    type(c_ptr) :: reason
  end type


  interface
    function c_error_message() bind(c, name="twr_error_message")
      import :: c_ptr
      type(c_ptr) :: c_error_message
    end function
    function c_status_name(status) bind(c, name="twr_status_name")
      import :: c_int, c_ptr
      integer(c_int), value :: status
      type(c_ptr) :: c_status_name
    end function
    function c_version() bind(c, name="twr_version")
      import :: c_ptr
      type(c_ptr) :: c_version
    end function
    function c_version_number() bind(c, name="twr_version_number")
      import :: c_int
      integer(c_int) :: c_version_number
    end function
    function c_settings_create(settings) bind(c, name="twr_settings_create")
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: settings
      integer(c_int) :: c_settings_create
    end function
    function c_settings_set(settings, name, value) bind(c, name="twr_settings_set")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: settings
      character(kind=c_char), intent(in) :: name(*), value(*)
      integer(c_int) :: c_settings_set
    end function
    function c_settings_load(settings, path) bind(c, name="twr_settings_load")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: settings
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: c_settings_load
    end function
    subroutine c_settings_destroy(settings) bind(c, name="twr_settings_destroy")
      import :: c_ptr
      type(c_ptr), value :: settings
    end subroutine
    function c_open(run, path, settings) bind(c, name="twr_open")
      import :: c_char, c_int, c_ptr
      type(c_ptr), intent(out) :: run
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), value :: settings
      integer(c_int) :: c_open
    end function
    function c_close(run) bind(c, name="twr_close")
      import :: c_int, c_ptr
      type(c_ptr), value :: run
      integer(c_int) :: c_close
    end function
    function c_protect_array(run, array) bind(c, name="twr_protect_array")
      import :: c_array, c_int, c_ptr
      type(c_ptr), value :: run
      type(c_array), intent(in) :: array
      integer(c_int) :: c_protect_array
    end function
    function c_unprotect(run, name) bind(c, name="twr_unprotect")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: run
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: c_unprotect
    end function
    function c_capture(run, step) bind(c, name="twr_capture")
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: run
      integer(c_int64_t), value :: step
      integer(c_int) :: c_capture
    end function
    function c_capture_some(run, step, names, count) bind(c, name="twr_capture_some")
      import :: c_int, c_int64_t, c_ptr, c_size_t
      type(c_ptr), value :: run
      integer(c_int64_t), value :: step
      type(c_ptr), intent(in) :: names(*)
      integer(c_size_t), value :: count
      integer(c_int) :: c_capture_some
    end function
    function c_wait(run) bind(c, name="twr_wait")
      import :: c_int, c_ptr
      type(c_ptr), value :: run
      integer(c_int) :: c_wait
    end function
    function c_last_report(run, report) bind(c, name="twr_last_report")
      import :: c_int, c_ptr, c_report
      type(c_ptr), value :: run
      type(c_report), intent(inout) :: report
      integer(c_int) :: c_last_report
    end function
    function c_report_json(run) bind(c, name="twr_report_json")
      import :: c_ptr
      type(c_ptr), value :: run
      type(c_ptr) :: c_report_json
    end function
    function c_latest(run, not_after, step) bind(c, name="twr_latest")
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: run
      integer(c_int64_t), value :: not_after
      integer(c_int64_t), intent(inout) :: step
      integer(c_int) :: c_latest
    end function
    function c_stored_bytes(run, step, name, bytes) bind(c, name="twr_stored_bytes")
      import :: c_char, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: run
      integer(c_int64_t), value :: step
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), intent(inout) :: bytes
      integer(c_int) :: c_stored_bytes
    end function
    function c_restore(run, step) bind(c, name="twr_restore")
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: run
      integer(c_int64_t), value :: step
      integer(c_int) :: c_restore
    end function
    function c_restore_some(run, step, names, count) bind(c, name="twr_restore_some")
      import :: c_int, c_int64_t, c_ptr, c_size_t
      type(c_ptr), value :: run
      integer(c_int64_t), value :: step
      type(c_ptr), intent(in) :: names(*)
      integer(c_size_t), value :: count
      integer(c_int) :: c_restore_some
    end function
    function c_on_divergence(run, callback, context) bind(c, name="twr_on_divergence")
      import :: c_funptr, c_int, c_ptr
      type(c_ptr), value :: run
      type(c_funptr), value :: callback
      type(c_ptr), value :: context
      integer(c_int) :: c_on_divergence
    end function
    function c_compare(a, b, options, found) bind(c, name="twr_compare")
      import :: c_char, c_compare_options, c_int, c_ptr
      character(kind=c_char), intent(in) :: a(*), b(*)
      type(c_compare_options), intent(in) :: options
      type(c_ptr), intent(out) :: found
      integer(c_int) :: c_compare
    end function
    function c_compare_arrays(a, a_count, b, b_count, options, found) bind(c, name="twr_compare_arrays")
      import :: c_array, c_compare_options, c_int, c_ptr, c_size_t
      type(c_array), intent(in) :: a(*), b(*)
      integer(c_size_t), value :: a_count, b_count
      type(c_compare_options), intent(in) :: options
      type(c_ptr), intent(out) :: found
      integer(c_int) :: c_compare_arrays
    end function
    function c_compare_step(run, reference, options, found) bind(c, name="twr_compare_step")
      import :: c_compare_options, c_int, c_ptr
      type(c_ptr), value :: run, reference
      type(c_compare_options), intent(in) :: options
      type(c_ptr), intent(out) :: found
      integer(c_int) :: c_compare_step
    end function
    subroutine c_comparison_destroy(found) bind(c, name="twr_comparison_destroy")
      import :: c_ptr
      type(c_ptr), value :: found
    end subroutine
    function c_comparison_facts(found, report) bind(c, name="twr_comparison_facts")
      import :: c_comparison_report, c_int, c_ptr
      type(c_ptr), value :: found
      type(c_comparison_report), intent(inout) :: report
      integer(c_int) :: c_comparison_facts
    end function
    function c_comparison_field(found, number, report) bind(c, name="twr_comparison_field")
      import :: c_field_report, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: found
      integer(c_int64_t), value :: number
      type(c_field_report), intent(inout) :: report
      integer(c_int) :: c_comparison_field
    end function
    function c_comparison_problem(found, number) bind(c, name="twr_comparison_problem")
      import :: c_int64_t, c_ptr
      type(c_ptr), value :: found
      integer(c_int64_t), value :: number
      type(c_ptr) :: c_comparison_problem
    end function
    function c_comparison_note(found, number) bind(c, name="twr_comparison_note")
      import :: c_int64_t, c_ptr
      type(c_ptr), value :: found
      integer(c_int64_t), value :: number
      type(c_ptr) :: c_comparison_note
    end function
    function c_comparison_verdict(found) bind(c, name="twr_comparison_verdict")
      import :: c_ptr
      type(c_ptr), value :: found
      type(c_ptr) :: c_comparison_verdict
    end function
    function c_comparison_json(found) bind(c, name="twr_comparison_json")
      import :: c_ptr
      type(c_ptr), value :: found
      type(c_ptr) :: c_comparison_json
    end function
    pure function c_strlen(text) bind(c, name="strlen")
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: c_strlen
    end function
  end interface

contains

  ! ---- settings ----

  subroutine set_text(settings, name, value)
    type(twr_settings_t), intent(inout) :: settings
    character(*), intent(in) :: name, value
    type(setting_t) :: setting
    setting%name = trim(name)
    setting%value = trim(value)
    call add(settings, setting)
  end subroutine

  subroutine set_real(settings, name, value)
    type(twr_settings_t), intent(inout) :: settings
    character(*), intent(in) :: name
    real(real64), intent(in) :: value
    character(32) :: text
    write (text, '(es25.17e3)') value  ! every bit of it
    call set_text(settings, name, adjustl(text))
  end subroutine

  subroutine set_integer(settings, name, value)
    type(twr_settings_t), intent(inout) :: settings
    character(*), intent(in) :: name
    integer(int32), intent(in) :: value
    call set_integer64(settings, name, int(value, int64))
  end subroutine

  subroutine set_integer64(settings, name, value)
    type(twr_settings_t), intent(inout) :: settings
    character(*), intent(in) :: name
    integer(int64), intent(in) :: value
    character(32) :: text
    write (text, '(i0)') value
    call set_text(settings, name, text)
  end subroutine

  subroutine set_logical(settings, name, value)
    type(twr_settings_t), intent(inout) :: settings
    character(*), intent(in) :: name
    logical, intent(in) :: value
    call set_text(settings, name, merge("true ", "false", value))
  end subroutine

  ! A file with lines "name = value", read by twr_open.
  subroutine twr_load(settings, path)
    type(twr_settings_t), intent(inout) :: settings
    character(*), intent(in) :: path
    type(setting_t) :: file
    file%value = trim(path)
    call add(settings, file)
  end subroutine

  subroutine add(settings, setting)
    type(twr_settings_t), intent(inout) :: settings
    type(setting_t), intent(in) :: setting
    type(setting_t), allocatable :: more(:)
    integer :: count
    count = 0
    if (allocated(settings%given)) count = size(settings%given)
    allocate (more(count + 1))
    if (count > 0) more(:count) = settings%given
    more(count + 1) = setting
    call move_alloc(more, settings%given)
  end subroutine

  ! The C interface's twr_settings*, to be given to twr_drop_settings; c_null_ptr where there are none.
  function twr_make_settings(settings, made) result(status)
    type(twr_settings_t), intent(in), optional :: settings
    type(c_ptr), intent(out) :: made
    integer(c_int) :: status
    integer :: i
    made = c_null_ptr
    status = twr_ok
    if (.not. present(settings)) return
    if (.not. allocated(settings%given)) return
    status = c_settings_create(made)
    do i = 1, size(settings%given)
      if (status /= twr_ok) exit
      associate (s => settings%given(i))
        if (allocated(s%name)) then
          status = c_settings_set(made, s%name // c_null_char, s%value // c_null_char)
        else
          status = c_settings_load(made, s%value // c_null_char)
        end if
      end associate
    end do
  end function

  subroutine twr_drop_settings(made)
    type(c_ptr), intent(in) :: made
    call c_settings_destroy(made)
  end subroutine

  ! ---- a run ----

  subroutine twr_open(run, path, settings, stat, errmsg)
    type(twr_run_t), intent(out) :: run
    character(*), intent(in) :: path
    type(twr_settings_t), intent(in), optional :: settings
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    type(c_ptr) :: made
    integer(c_int) :: status
    status = twr_make_settings(settings, made)
    if (status == twr_ok) status = c_open(run%handle, trim(path) // c_null_char, made)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
    call twr_drop_settings(made)
  end subroutine

  subroutine twr_close(run, stat, errmsg)
    type(twr_run_t), intent(inout) :: run
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_close(run%handle)
    run%handle = c_null_ptr
    if (associated(run%listener)) deallocate (run%listener)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  ! Memory that is not a Fortran array: of a device, or of C's. dense, in column-major order, unless strides (bytes, one a
  ! dimension) are given.
  subroutine twr_protect_address(run, name, address, dtype, shape, strides, device, atol, rtol, global_shape, &
      global_offset, ids, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: dtype
    integer(int64), intent(in) :: shape(:)
    integer(int64), intent(in), optional :: strides(:)
    integer, intent(in), optional :: device
    real(real64), intent(in), optional :: atol, rtol
    integer(int64), intent(in), optional :: global_shape(:), global_offset(:)
    character(*), intent(in), optional :: ids
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = protect_memory(run, name, address, dtype, shape, strides, device, atol, rtol, global_shape, global_offset, ids)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  function protect_memory(run, name, address, dtype, shape, strides, device, atol, rtol, global_shape, global_offset, ids) &
      result(status)
    type(twr_run_t), intent(in) :: run
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: dtype
    integer(int64), intent(in) :: shape(:)
    integer(int64), intent(in), optional :: strides(:)
    integer, intent(in), optional :: device
    real(real64), intent(in), optional :: atol, rtol
    integer(int64), intent(in), optional :: global_shape(:), global_offset(:)
    character(*), intent(in), optional :: ids
    integer(c_int) :: status
    character(:, kind=c_char), allocatable, target :: name_c, ids_c
    ! One more: c_loc needs an element.
    integer(c_int64_t), dimension(size(shape) + 1), target :: shape_c, strides_c, global_shape_c, global_offset_c
    type(c_array) :: array

    name_c = trim(name) // c_null_char
    shape_c(:size(shape)) = shape
    array%size = storage_size(array) / 8
    array%name = c_loc(name_c)
    array%data = address
    array%dtype = int(dtype, c_int)
    array%order = column_major
    array%dimensions = int(size(shape), c_int)
    array%shape = c_loc(shape_c)
    array%strides = c_null_ptr
    array%global_shape = c_null_ptr
    array%global_offset = c_null_ptr
    array%ids = c_null_ptr
    array%device = twr_detect
    array%stream = c_null_ptr
    array%atol = -1
    array%rtol = 0
    ! The C interface cannot see how long an array is.
    status = wrong_size
    if (present(strides)) then
      if (size(strides) /= size(shape)) return
      strides_c(:size(shape)) = strides
      array%strides = c_loc(strides_c)
    end if
    if (present(global_shape)) then
      if (size(global_shape) /= size(shape)) return
      global_shape_c(:size(shape)) = global_shape
      array%global_shape = c_loc(global_shape_c)
    end if
    if (present(global_offset)) then
      if (size(global_offset) /= size(shape)) return
      global_offset_c(:size(shape)) = global_offset
      array%global_offset = c_loc(global_offset_c)
    end if
    if (present(atol) .or. present(rtol)) array%atol = 0
    if (present(atol)) array%atol = atol
    if (present(rtol)) array%rtol = rtol
    if (present(ids)) then
      ids_c = trim(ids) // c_null_char
      array%ids = c_loc(ids_c)
    end if
    if (present(device)) array%device = int(device, c_int)
    status = c_protect_array(run%handle, array)
  end function

  ! All forms of twr_protect call this. at: the address of the first item, then that of the next one along each dimension, as far
  ! as the array has one.
  function protect_items(run, name, at, dtype, item_bits, shape, atol, rtol, global_shape, global_offset, ids) result(status)
    type(twr_run_t), intent(in) :: run
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: at(0:)
    integer, intent(in) :: dtype
    integer, intent(in) :: item_bits
    integer(int64), intent(in) :: shape(:)
    real(real64), intent(in), optional :: atol, rtol
    integer(int64), intent(in), optional :: global_shape(:), global_offset(:)
    character(*), intent(in), optional :: ids
    integer(c_int) :: status
    integer(int64) :: dense(size(shape)), found(size(shape))
    integer(int64), allocatable :: strides(:)  ! not allocated: absent
    integer :: d
    do d = 1, size(shape)
      dense(d) = item_bits / 8 * product(shape(:d - 1))
      found(d) = dense(d)
      if (c_associated(at(d))) found(d) = transfer(at(d), 0_c_intptr_t) - transfer(at(0), 0_c_intptr_t)
    end do
    if (any(found /= dense)) strides = found
    status = protect_memory(run, name, at(0), dtype, shape, strides, twr_detect, atol, rtol, global_shape, global_offset, ids)
  end function

  subroutine twr_unprotect(run, name, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    character(*), intent(in) :: name
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_unprotect(run%handle, trim(name) // c_null_char)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  ! call twr_capture(run, step [, names, stat, errmsg]): all protected arrays, or those that are named.
  subroutine capture_int64(run, step, names, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    integer(int64), intent(in) :: step
    character(*), intent(in), optional :: names(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = capture_named(run, step, names)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  subroutine capture_int32(run, step, names, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    integer(int32), intent(in) :: step
    character(*), intent(in), optional :: names(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = capture_named(run, int(step, int64), names)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  function capture_named(run, step, names) result(status)
    type(twr_run_t), intent(in) :: run
    integer(int64), intent(in) :: step
    character(*), intent(in), optional :: names(:)
    integer(c_int) :: status
    character(kind=c_char), allocatable, target :: texts(:)
    type(c_ptr), allocatable :: pointers(:)
    if (present(names)) then
      call name_list(names, texts, pointers)
      status = c_capture_some(run%handle, step, pointers, int(size(names), c_size_t))
    else
      status = c_capture(run%handle, step)
    end if
  end function

  subroutine twr_wait(run, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_wait(run%handle)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  subroutine twr_last_report(run, report, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    type(twr_report_t), intent(out) :: report
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    type(c_report) :: filled
    integer(c_int) :: status
    filled%size = storage_size(filled) / 8
    status = c_last_report(run%handle, filled)
    if (status == twr_ok) then
      report = twr_report_t(filled%step, filled%seconds, filled%waited_seconds, filled%data_bytes, filled%staged_bytes, &
          filled%diverged /= 0, filled%pending_steps)
    end if
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  ! The same as a JSON object; "{}" if nothing was captured yet.
  function twr_report_json(run) result(text)
    type(twr_run_t), intent(in) :: run
    character(:), allocatable :: text
    text = text_at(c_report_json(run%handle))
  end function

  ! ---- going on from a step ----

  ! step: the newest one that every rank completed, up to not_after.
  subroutine twr_latest(run, step, not_after, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    integer(int64), intent(inout) :: step  ! as it was, if there is none
    integer(int64), intent(in), optional :: not_after
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    integer(c_int64_t) :: bound
    bound = huge(bound)
    if (present(not_after)) bound = not_after
    status = c_latest(run%handle, bound, step)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  subroutine twr_stored_bytes(run, step, name, bytes, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    integer(int64), intent(in) :: step
    character(*), intent(in) :: name
    integer(int64), intent(out) :: bytes
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    bytes = 0
    status = c_stored_bytes(run%handle, step, trim(name) // c_null_char, bytes)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  ! call twr_restore(run, step [, names, stat, errmsg]): all protected arrays, or those that are named.
  subroutine restore_int64(run, step, names, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    integer(int64), intent(in) :: step
    character(*), intent(in), optional :: names(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = restore_named(run, step, names)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  subroutine restore_int32(run, step, names, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    integer(int32), intent(in) :: step
    character(*), intent(in), optional :: names(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = restore_named(run, int(step, int64), names)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  function restore_named(run, step, names) result(status)
    type(twr_run_t), intent(in) :: run
    integer(int64), intent(in) :: step
    character(*), intent(in), optional :: names(:)
    integer(c_int) :: status
    character(kind=c_char), allocatable, target :: texts(:)
    type(c_ptr), allocatable :: pointers(:)
    if (present(names)) then
      call name_list(names, texts, pointers)
      status = c_restore_some(run%handle, step, pointers, int(size(names), c_size_t))
    else
      status = c_restore(run%handle, step)
    end if
  end function

  ! ---- comparison with a reference while the run goes on ----

  ! Calls `callback` once a step and rank that diverges; again, with another procedure, to replace it.
  subroutine twr_on_divergence(run, callback, stat, errmsg)
    type(twr_run_t), intent(inout) :: run
    procedure(twr_divergence_callback) :: callback
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    type(listener_t), pointer :: listener
    allocate (listener)
    listener%call => callback
    status = c_on_divergence(run%handle, c_funloc(called_back), c_loc(listener))
    if (status == twr_ok) then
      if (associated(run%listener)) deallocate (run%listener)
      run%listener => listener
    else
      deallocate (listener)
    end if
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  subroutine called_back(shown, context) bind(c, name="twr_fortran_called_back")
    type(c_divergence), intent(in) :: shown
    type(c_ptr), value :: context
    type(listener_t), pointer :: listener
    type(twr_divergence_t) :: divergence
    call c_f_pointer(context, listener)
    divergence%step = shown%step
    divergence%rank = shown%rank
    divergence%field = text_at(shown%field)
    divergence%first_item = shown%first_item
    divergence%chunks = shown%chunks
    divergence%chunks_in_all = shown%chunks_in_all
    divergence%reason = text_at(shown%reason)
    call listener%call(divergence)
  end subroutine

  ! ---- comparison of two runs ----

  ! Two histories; a is the reference. stat, with a result: twr_ok where all was compared and agrees, twr_different,
  ! twr_incomparable. With any other stat there is no result.
  subroutine twr_compare(found, a, b, options, stat, errmsg)
    type(twr_comparison_t), intent(out) :: found
    character(*), intent(in) :: a, b
    type(twr_compare_options_t), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_compare(trim(a) // c_null_char, trim(b) // c_null_char, asked(options), found%handle)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  ! Arrays in memory, by their names.
  subroutine twr_compare_arrays(found, a, b, options, stat, errmsg)
    type(twr_comparison_t), intent(out) :: found
    type(twr_array_t), intent(in) :: a(:), b(:)
    type(twr_compare_options_t), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    character(kind=c_char), allocatable, target :: names_a(:), names_b(:)
    integer(c_int64_t), allocatable, target :: shapes_a(:), shapes_b(:)
    type(c_array), allocatable :: list_a(:), list_b(:)
    call array_list(a, names_a, shapes_a, list_a)
    call array_list(b, names_b, shapes_b, list_b)
    status = c_compare_arrays(list_a, int(size(a), c_size_t), list_b, int(size(b), c_size_t), asked(options), found%handle)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  ! The step that this rank captured last, with the same step and rank of the reference; by default of the run's settings.
  subroutine twr_compare_step(found, run, reference, options, stat, errmsg)
    type(twr_comparison_t), intent(out) :: found
    type(twr_run_t), intent(in) :: run
    character(*), intent(in), optional :: reference
    type(twr_compare_options_t), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    character(:, kind=c_char), allocatable, target :: path
    type(c_ptr) :: named
    named = c_null_ptr
    if (present(reference)) then
      path = trim(reference) // c_null_char
      named = c_loc(path)
    end if
    status = c_compare_step(run%handle, named, asked(options), found%handle)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  subroutine twr_comparison_destroy(found)
    type(twr_comparison_t), intent(inout) :: found
    call c_comparison_destroy(found%handle)
    found%handle = c_null_ptr
  end subroutine

  subroutine twr_comparison_facts(found, report, stat, errmsg)
    type(twr_comparison_t), intent(in) :: found
    type(twr_comparison_report_t), intent(out) :: report
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    type(c_comparison_report) :: facts
    facts%size = storage_size(facts) / 8
    status = c_comparison_facts(found%handle, facts)
    if (status == twr_ok) then
      report%verdict = int(facts%verdict)
      report%fields = facts%fields
      report%different_fields = facts%different_fields
      report%first_field = facts%first_field + 1  ! none is -1 here
      report%different = facts%different
      report%problems = facts%problems
      report%notes = facts%notes
      report%bytes_compared = facts%bytes_compared
      report%bytes_read = facts%bytes_read
      report%seconds = facts%seconds
    end if
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  ! Of entry `number`, from 1.
  subroutine twr_comparison_field(found, number, field, stat, errmsg)
    type(twr_comparison_t), intent(in) :: found
    integer(int64), intent(in) :: number
    type(twr_field_report_t), intent(out) :: field
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    type(c_field_report) :: facts
    facts%size = storage_size(facts) / 8
    status = c_comparison_field(found%handle, number - 1, facts)
    if (status == twr_ok) then
      field%step = facts%step
      field%rank = int(facts%rank)
      field%dtype = int(facts%dtype)
      field%field = text_at(facts%field)
      field%shape = numbers_at(facts%shape, facts%dimensions)
      field%atol = facts%atol
      field%rtol = facts%rtol
      field%elements = facts%elements
      field%different = facts%different
      field%infinite = facts%infinite
      if (c_associated(facts%first_index)) field%first_index = numbers_at(facts%first_index, facts%index_length) + 1
      field%first_a = real_of(facts%first_a)
      field%first_b = real_of(facts%first_b)
      field%first_abs_diff = facts%first_abs_diff
      field%max_abs_diff = facts%max_abs_diff
      field%max_abs_diff_is_bound = facts%max_abs_diff_is_bound /= 0
      field%max_rel_diff = facts%max_rel_diff
      field%rms_diff = facts%rms_diff
      field%elements_read = facts%elements_read
      field%method = text_at(facts%method)
      field%different_is_exact = facts%different_is_exact /= 0
      if (.not. field%different_is_exact) then
        field%first_chunk_begin = numbers_at(facts%first_chunk_begin, facts%index_length) + 1
        field%first_chunk_end = numbers_at(facts%first_chunk_end, facts%index_length) + 1
      end if
    end if
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine

  ! What could not be compared, and what the user should know: number from 1. "": there are not so many.
  function twr_comparison_problem(found, number) result(text)
    type(twr_comparison_t), intent(in) :: found
    integer(int64), intent(in) :: number
    character(:), allocatable :: text
    text = text_or_none(c_comparison_problem(found%handle, number - 1))
  end function

  function twr_comparison_note(found, number) result(text)
    type(twr_comparison_t), intent(in) :: found
    integer(int64), intent(in) :: number
    character(:), allocatable :: text
    text = text_or_none(c_comparison_note(found%handle, number - 1))
  end function

  ! The verdict in a line.
  function twr_comparison_verdict(found) result(text)
    type(twr_comparison_t), intent(in) :: found
    character(:), allocatable :: text
    text = text_or_none(c_comparison_verdict(found%handle))
  end function

  ! All facts as a JSON object. "": there is no comparison, or not enough memory.
  function twr_comparison_json(found) result(text)
    type(twr_comparison_t), intent(in) :: found
    character(:), allocatable :: text
    text = text_or_none(c_comparison_json(found%handle))
  end function

  function asked(options) result(given)
    type(twr_compare_options_t), intent(in), optional :: options
    type(c_compare_options) :: given
    type(twr_compare_options_t) :: chosen
    if (present(options)) chosen = options
    given%size = storage_size(given) / 8
    given%atol = chosen%atol
    given%rtol = chosen%rtol
    given%ulps = chosen%ulps
    given%nan_differs = merge(1_c_int, 0_c_int, chosen%nan_differs)
    given%tolerate_integers = merge(1_c_int, 0_c_int, chosen%tolerate_integers)
    given%common = merge(1_c_int, 0_c_int, chosen%common)
    given%method = merge(1_c_int, 0_c_int, chosen%direct)
    given%device = int(chosen%device, c_int)
    given%threads = int(chosen%threads, c_int)
    given%memory_bytes = chosen%memory_bytes
  end function

  ! Arrays as C expects them; their names and shapes lie in names and shapes.
  subroutine array_list(arrays, names, shapes, list)
    type(twr_array_t), intent(in) :: arrays(:)
    character(kind=c_char), allocatable, target, intent(out) :: names(:)
    integer(c_int64_t), allocatable, target, intent(out) :: shapes(:)
    type(c_array), allocatable, intent(out) :: list(:)
    integer :: i, j, of_names, of_shapes
    of_names = 1
    of_shapes = 1
    do i = 1, size(arrays)
      if (allocated(arrays(i)%name)) of_names = of_names + len(arrays(i)%name) + 1
      if (allocated(arrays(i)%shape)) of_shapes = of_shapes + size(arrays(i)%shape)
    end do
    allocate (names(of_names), shapes(of_shapes), list(max(1, size(arrays))))
    of_names = 1
    of_shapes = 1
    do i = 1, size(arrays)
      list(i) = c_array(storage_size(list) / 8, c_null_ptr, arrays(i)%address, int(arrays(i)%dtype, c_int), column_major, 0, &
          c_loc(shapes(of_shapes)), c_null_ptr, c_null_ptr, c_null_ptr, -1, 0, c_null_ptr, twr_detect, c_null_ptr)
      if (allocated(arrays(i)%name)) then
        list(i)%name = c_loc(names(of_names))
        do j = 1, len_trim(arrays(i)%name)
          names(of_names) = arrays(i)%name(j:j)
          of_names = of_names + 1
        end do
        names(of_names) = c_null_char
        of_names = of_names + 1
      end if
      if (allocated(arrays(i)%shape)) then
        list(i)%dimensions = int(size(arrays(i)%shape), c_int)
        do j = 1, size(arrays(i)%shape)
          shapes(of_shapes) = arrays(i)%shape(j)
          of_shapes = of_shapes + 1
        end do
      end if
    end do
  end subroutine

  function numbers_at(address, count) result(numbers)
    type(c_ptr), intent(in) :: address
    integer(c_int), intent(in) :: count
    integer(int64), allocatable :: numbers(:)
    integer(c_int64_t), pointer :: there(:)
    call c_f_pointer(address, there, [count])
    numbers = there
  end function

  pure function real_of(value) result(number)
    type(c_value), intent(in) :: value
    real(real64) :: number
    number = 0
    if (value%dtype == twr_f64) number = transfer(value%bits, number)
    if (value%dtype == twr_i64 .or. value%dtype == twr_u64) number = real(value%bits, real64)
    if (value%dtype == twr_u64 .and. value%bits < 0) number = number + 2.0_real64**64
  end function

  ! ---- texts and errors ----

  function twr_version() result(text)
    character(:), allocatable :: text
    text = text_at(c_version())
  end function

  function twr_version_number() result(number)
    integer :: number
    number = int(c_version_number())
  end function

  function twr_status_name(status) result(text)
    integer, intent(in) :: status
    character(:), allocatable :: text
    text = text_at(c_status_name(int(status, c_int)))
  end function

  ! The text of this thread's last call that did not succeed.
  function twr_error_message() result(text)
    character(:), allocatable :: text
    text = text_at(c_error_message())
  end function

  function message_of(status) result(text)
    integer(c_int), intent(in) :: status
    character(:), allocatable :: text
    if (status == wrong_size) then
      text = "twr_protect: strides, global_shape or global_offset are not one a dimension"
    else
      text = twr_error_message()
    end if
  end function

  ! What a procedure does last with the C interface's status. It sets errmsg itself: gfortran 12 loses the length of an optional
  ! text that is passed on.
  subroutine finish(status, stat)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: stat
    if (present(stat)) then
      stat = int(status)
      if (status == wrong_size) stat = twr_error_invalid_argument
    else if (status /= twr_ok) then
      write (error_unit, '(a)') "twinrun: " // message_of(status)
      error stop 1
    end if
  end subroutine

  function text_or_none(address) result(text)
    type(c_ptr), intent(in) :: address
    character(:), allocatable :: text
    text = ""
    if (c_associated(address)) text = text_at(address)
  end function

  function text_at(address) result(text)
    type(c_ptr), intent(in) :: address
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    integer :: i
    call c_f_pointer(address, characters, [c_strlen(address)])
    allocate (character(size(characters)) :: text)
    do i = 1, size(characters)
      text(i:i) = characters(i)
    end do
  end function

  ! names as C expects them: pointers to what lies in texts.
  subroutine name_list(names, texts, pointers)
    character(*), intent(in) :: names(:)
    character(kind=c_char), allocatable, target, intent(out) :: texts(:)
    type(c_ptr), allocatable, intent(out) :: pointers(:)
    integer :: i, j, at
    allocate (texts(max(1, sum(len_trim(names) + 1))))
    allocate (pointers(max(1, size(names))))
    pointers = c_null_ptr
    at = 1
    do i = 1, size(names)
      pointers(i) = c_loc(texts(at))
      do j = 1, len_trim(names(i))
        texts(at) = names(i)(j:j)
        at = at + 1
      end do
      texts(at) = c_null_char
      at = at + 1
    end do
  end subroutine

  include "twinrun_protect.inc"

end module
