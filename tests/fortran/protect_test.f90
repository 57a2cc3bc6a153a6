! The module twinrun: every type and rank goes into a step and comes back; stat, errmsg and optional arguments do what they say.
!
! usage: test_fortran FOLDER (empty, to write to)
module divergences
  use twinrun
  implicit none
  integer :: heard = 0
  type(twr_divergence_t) :: last
contains
  subroutine note(divergence)
    type(twr_divergence_t), intent(in) :: divergence
    heard = heard + 1
    last = divergence
  end subroutine
end module

program protect_test
  use, intrinsic :: iso_c_binding, only: c_bool, c_loc
  use, intrinsic :: iso_fortran_env, only: error_unit, int8, int16, int32, int64, real32, real64
  use twinrun
  use divergences
  implicit none
  character(1000) :: folder
  integer :: failures = 0

  call get_command_argument(1, folder)
  call every_rank()
  call every_type()
  call sections()
  call optional_arguments()
  call errors()
  call divergence()
  call comparison()
  call check(len(twr_version()) > 0, "version")
  call check(twr_version_number() == twr_module_version, "version's number")
  call check(twr_module_version == 10000 * twr_version_major + 100 * twr_version_minor + twr_version_patch, "module's version")
  call check(twr_status_name(twr_error_io) == "TWR_ERROR_IO", "status name")
  if (failures > 0) error stop 1
  print '(a)', "1 passed, 0 failed"

contains

  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what
    if (condition) return
    failures = failures + 1
    write (error_unit, '(a)') "failed: " // what
  end subroutine

  subroutine open_run(run, name)
    type(twr_run_t), intent(out) :: run
    character(*), intent(in) :: name
    type(twr_settings_t) :: settings
    call twr_set(settings, "atol", 1e-9_real64)
    call twr_set(settings, "residue_bits", 4)
    call twr_set(settings, "memory", 67108864_int64)
    call twr_set(settings, "log_divergence", .false.)
    call twr_open(run, trim(folder) // "/" // name, settings)
  end subroutine

  ! No size is the same, so that a wrong stride or a wrong order of dimensions shows.
  subroutine every_rank()
    type(twr_run_t) :: run
    real(real64), target :: a0, a1(7), a2(2, 3), a3(2, 3, 4), a4(2, 3, 4, 5), a5(2, 1, 3, 2, 4), a6(2, 1, 3, 1, 2, 5), &
        a7(1, 2, 3, 1, 2, 3, 2)
    integer(int64) :: bytes
    integer :: i
    a0 = 0.5
    a1 = [(1000 + i, i=1, size(a1))]
    a2 = reshape([(2000 + i, i=1, size(a2))], shape(a2))
    a3 = reshape([(3000 + i, i=1, size(a3))], shape(a3))
    a4 = reshape([(4000 + i, i=1, size(a4))], shape(a4))
    a5 = reshape([(5000 + i, i=1, size(a5))], shape(a5))
    a6 = reshape([(6000 + i, i=1, size(a6))], shape(a6))
    a7 = reshape([(7000 + i, i=1, size(a7))], shape(a7))
    call open_run(run, "ranks")
    call twr_protect(run, "a0", a0)
    call twr_protect(run, "a1", a1)
    call twr_protect(run, "a2", a2)
    call twr_protect(run, "a3", a3)
    call twr_protect(run, "a4", a4)
    call twr_protect(run, "a5", a5)
    call twr_protect(run, "a6", a6)
    call twr_protect(run, "a7", a7)
    call twr_capture(run, 1)
    call twr_wait(run)
    a0 = 0; a1 = 0; a2 = 0; a3 = 0; a4 = 0; a5 = 0; a6 = 0; a7 = 0
    call twr_restore(run, 1)
    call check(.not. a0 /= 0.5_real64, "rank 0")
    call check(all(nint(a1) == [(1000 + i, i=1, size(a1))]), "rank 1")
    call check(all(nint([a2]) == [(2000 + i, i=1, size(a2))]), "rank 2")
    call check(all(nint([a3]) == [(3000 + i, i=1, size(a3))]), "rank 3")
    call check(all(nint([a4]) == [(4000 + i, i=1, size(a4))]), "rank 4")
    call check(all(nint([a5]) == [(5000 + i, i=1, size(a5))]), "rank 5")
    call check(all(nint([a6]) == [(6000 + i, i=1, size(a6))]), "rank 6")
    call check(all(nint([a7]) == [(7000 + i, i=1, size(a7))]), "rank 7")
    call twr_stored_bytes(run, 1_int64, "a4", bytes)
    call check(bytes == 8 * size(a4), "stored bytes")
    call twr_close(run)
  end subroutine

  subroutine every_type()
    type(twr_run_t) :: run
    real(real32), target :: r4(5) = [1, 2, 3, 4, 5]
    real(real64), target :: r8(5) = [1, 2, 3, 4, 5]
    integer(int8), target :: i1(5) = [1_int8, 2_int8, 3_int8, 4_int8, 5_int8]
    integer(int16), target :: i2(5) = [1_int16, 2_int16, 3_int16, 4_int16, 5_int16]
    integer(int32), target :: i4(5) = [1, 2, 3, 4, 5]
    integer(int64), target :: i8(5) = [1, 2, 3, 4, 5]
    complex(real32), target :: c4(2) = [(1, 2), (3, 4)]
    complex(real64), target :: c8(2) = [(1, 2), (3, 4)]
    logical, target :: l(3) = [.true., .false., .true.]
    logical(c_bool), target :: b(3) = [.true._c_bool, .false._c_bool, .true._c_bool]
    character(2), parameter :: names(10) = ["r4", "r8", "i1", "i2", "i4", "i8", "c4", "c8", "l ", "b "]
    integer(int64), parameter :: expected(10) = [20, 40, 5, 10, 20, 40, 16, 32, 3 * (storage_size(.true.) / 8), 3]
    integer(int64) :: bytes
    integer :: i
    call open_run(run, "types")
    call twr_protect(run, "r4", r4)
    call twr_protect(run, "r8", r8)
    call twr_protect(run, "i1", i1)
    call twr_protect(run, "i2", i2)
    call twr_protect(run, "i4", i4)
    call twr_protect(run, "i8", i8)
    call twr_protect(run, "c4", c4)
    call twr_protect(run, "c8", c8)
    call twr_protect(run, "l", l)
    call twr_protect(run, "b", b)
    call twr_capture(run, 7_int64)
    call twr_wait(run)
    r4 = 0; r8 = 0; i1 = 0; i2 = 0; i4 = 0; i8 = 0; c4 = 0; c8 = 0; l = .false.; b = .true._c_bool
    call twr_restore(run, 7_int64)
    call check(all(nint(r4) == [1, 2, 3, 4, 5]), "real32")
    call check(all(nint(r8) == [1, 2, 3, 4, 5]), "real64")
    call check(all(int(i1) == [1, 2, 3, 4, 5]), "int8")
    call check(all(int(i2) == [1, 2, 3, 4, 5]), "int16")
    call check(all(i4 == [1, 2, 3, 4, 5]), "int32")
    call check(all(int(i8) == [1, 2, 3, 4, 5]), "int64")
    call check(all(nint(real(c4)) == [1, 3]) .and. all(nint(aimag(c4)) == [2, 4]), "complex32")
    call check(all(nint(real(c8)) == [1, 3]) .and. all(nint(aimag(c8)) == [2, 4]), "complex64")
    call check(all(l .eqv. [.true., .false., .true.]), "logical")
    call check(all(logical(b) .eqv. [.true., .false., .true.]), "logical(c_bool)")
    do i = 1, size(names)
      call twr_stored_bytes(run, 7_int64, names(i), bytes)
      call check(bytes == expected(i), "stored bytes of " // names(i))
    end do
    call twr_close(run)
  end subroutine

  ! Sections that are not contiguous: what lies between their items is neither captured nor written.
  subroutine sections()
    type(twr_run_t) :: run
    real(real64), target :: a(6, 8), none(0, 3), single(1, 5)
    real(real64), pointer :: backwards(:, :)
    integer :: i, j
    forall (i=1:6, j=1:8) a(i, j) = 10 * i + j
    single(1, :) = [1, 2, 3, 4, 5]
    backwards => a(6:2:-2, 8:1:-3)
    call open_run(run, "sections")
    call twr_protect(run, "section", a(1:5:2, 2:8:3))
    call twr_protect(run, "backwards", backwards)
    call twr_protect(run, "none", none)
    call twr_protect(run, "single", single(:, 1:5:2))
    call twr_capture(run, 1)
    call twr_wait(run)
    a = -1
    single = -1
    call twr_restore(run, 1)
    do j = 1, 8
      do i = 1, 6
        if (mod(i, 2) == 1 .and. mod(j, 3) == 2) then
          call check(nint(a(i, j)) == 10 * i + j, "item of a section")
        else if (mod(i, 2) == 0 .and. mod(j, 3) == 2) then
          call check(nint(a(i, j)) == 10 * i + j, "item of a section that runs backwards")
        else
          call check(nint(a(i, j)) == -1, "item between those of a section")
        end if
      end do
    end do
    call check(all(nint(single(1, :)) == [1, -1, 3, -1, 5]), "section of one row")
    call twr_close(run)
  end subroutine

  subroutine optional_arguments()
    type(twr_run_t) :: run
    type(twr_report_t) :: report
    real(real64), target :: x(2, 3) = reshape([1, 2, 3, 4, 5, 6], [2, 3])
    integer(int64), target :: id(3) = [30, 10, 20]
    real(real32), target :: y(4) = [1, 2, 3, 4]
    integer(int64) :: step, shape_of_y(1)
    call open_run(run, "optional")
    call twr_protect(run, "id", id)
    call twr_protect(run, "x", x, atol=1e-3_real64, rtol=1e-6_real64, ids="id")
    shape_of_y = 4
    call twr_protect_address(run, "y", c_loc(y), twr_f32, shape_of_y, device=twr_host, global_shape=[10_int64], &
        global_offset=[6_int64])
    call twr_capture(run, 1)
    call twr_capture(run, 2, names=["id", "x "])
    call twr_last_report(run, report)
    call check(report%step == 2 .and. report%data_bytes == 3 * 8 + 6 * 8, "report")
    call check(index(twr_report_json(run), '{"step": 2, ') == 1, "report as JSON")
    call twr_wait(run)
    call twr_latest(run, step)
    call check(step == 2, "latest")
    call twr_latest(run, step, not_after=1_int64)
    call check(step == 1, "latest that is not after")
    x = 0
    y = 0
    call twr_restore(run, 1_int64, names=["y"])
    call check(all(nint(y) == [1, 2, 3, 4]) .and. all(nint(x) == 0), "restore of what is named")
    call twr_unprotect(run, "y")
    call twr_close(run)
  end subroutine

  subroutine errors()
    type(twr_run_t) :: run, nothing
    type(twr_settings_t) :: settings
    real(real64), target :: x(3) = 0
    character(:), allocatable :: message
    integer :: stat
    integer(int64) :: step
    call twr_set(settings, "no such setting", "1")
    call twr_open(run, trim(folder) // "/errors", settings, stat, message)
    call check(stat == twr_error_invalid_argument .and. index(message, "no such setting") > 0, "unknown setting")
    call open_run(run, "errors")
    message = "as it was"
    call twr_protect(run, "x", x, stat=stat, errmsg=message)
    call check(stat == twr_ok .and. message == "as it was", "errmsg after success")
    call twr_protect(run, "x", x, global_shape=[3_int64, 3_int64], global_offset=[0_int64], stat=stat, errmsg=message)
    call check(stat == twr_error_invalid_argument .and. index(message, "global_shape") > 0, "global_shape of another size")
    call twr_latest(run, step, stat=stat)
    call check(stat == twr_error_not_found, "latest of none")
    call twr_unprotect(run, "y", stat)
    call check(stat == twr_error_not_found, "unprotect of what is not protected")
    call twr_capture(run, 1, names=["y"], stat=stat)
    call check(stat /= twr_ok, "capture of what is not protected")
    call twr_close(run)
    call twr_capture(run, 1, stat=stat, errmsg=message)
    call check(stat == twr_error_invalid_argument .and. index(message, "NULL") > 0, "capture of a closed run")
    call twr_close(nothing, stat)
    call check(stat == twr_ok, "close of a run that was never opened")
  end subroutine

  subroutine divergence()
    type(twr_run_t) :: run
    type(twr_settings_t) :: settings
    real(real64), target :: x(3) = [1, 2, 3]
    character(:), allocatable :: message
    integer :: stat
    call open_run(run, "reference")
    call twr_protect(run, "x", x)
    call twr_capture(run, 1)
    call twr_close(run)
    call twr_set(settings, "atol", 1e-9_real64)
    call twr_set(settings, "reference", trim(folder) // "/reference")
    call twr_set(settings, "stop_on_divergence", .true.)
    call twr_open(run, trim(folder) // "/diverges", settings)
    call twr_on_divergence(run, note)
    x(2) = 2.5
    call twr_protect(run, "x", x)
    call twr_capture(run, 1, stat=stat, errmsg=message)
    call check(stat == twr_diverged .and. index(message, "x") > 0, "divergence")
    call check(heard == 1 .and. last%step == 1 .and. last%field == "x" .and. last%first_item == 0 .and. last%chunks == 1, &
        "callback")
    call twr_close(run)
  end subroutine

  subroutine comparison()
    type(twr_run_t) :: run
    type(twr_settings_t) :: settings
    type(twr_comparison_t) :: found
    type(twr_comparison_report_t) :: facts
    type(twr_field_report_t) :: field
    type(twr_compare_options_t) :: options
    type(twr_array_t) :: a(2), b(2)
    real(real64), target :: x(2, 3) = 1, y(2, 3)
    integer(int64), target :: n = 5, m = 6
    character(:), allocatable :: message
    integer :: stat
    call open_run(run, "one")
    call twr_protect(run, "x", x)
    call twr_capture(run, 1)
    call twr_close(run)
    call open_run(run, "other")
    y = x
    y(2, 1) = 1.5
    call twr_protect(run, "x", y)
    call twr_compare_step(found, run, trim(folder) // "/one", stat=stat)
    call check(stat == twr_error_not_found, "comparison before the first capture")
    call twr_capture(run, 1)
    call twr_compare_step(found, run, trim(folder) // "/one", stat=stat)
    call check(stat == twr_different, "comparison of a step")
    call twr_comparison_destroy(found)
    call twr_close(run)

    call twr_compare(found, trim(folder) // "/one", trim(folder) // "/one")
    call check(index(twr_comparison_verdict(found), "same: ") == 1, "the same")
    call twr_comparison_facts(found, facts)
    call check(facts%verdict == twr_ok .and. facts%first_field == 0 .and. facts%fields == 1, "facts of the same")
    call twr_comparison_destroy(found)
    call twr_compare(found, trim(folder) // "/one", trim(folder) // "/other", stat=stat, errmsg=message)
    call check(stat == twr_different .and. index(message, "different: first at") > 0, "different")
    call twr_comparison_facts(found, facts)
    call check(facts%verdict == twr_different .and. facts%first_field == 1 .and. facts%different == 1, "facts")
    call twr_comparison_field(found, facts%first_field, field)
    call check(field%field == "x" .and. all(field%shape == [2, 3]) .and. all(field%first_index == [2, 1]), "first index")
    call check(nint(2 * field%first_b) == 3 .and. nint(2 * field%max_abs_diff) == 1 .and. field%step == 1, "field")
    call twr_comparison_field(found, 2_int64, field, stat)
    call check(stat == twr_error_not_found, "a field that is not there")
    call check(index(twr_comparison_json(found), '"verdict": "different"') > 0, "json")
    call check(twr_comparison_problem(found, 1_int64) == "" .and. twr_comparison_note(found, 1_int64) == "", "no problem")
    call twr_comparison_destroy(found)
    call twr_compare(found, trim(folder) // "/one", trim(folder) // "/none", stat=stat)
    call check(stat == twr_error_not_found, "comparison with what is no history")

    a(1) = twr_array_t("x", c_loc(x), twr_f64, [2_int64, 3_int64])
    b(1) = twr_array_t("x", c_loc(y), twr_f64, [2_int64, 3_int64])
    a(2)%name = "n"
    a(2)%dtype = twr_i64
    b(2) = a(2)
    a(2)%address = c_loc(n)
    b(2)%address = c_loc(m)
    call twr_compare_arrays(found, a, b, stat=stat)
    call check(stat == twr_different, "arrays")
    call twr_comparison_field(found, 2_int64, field)
    call check(field%field == "n" .and. nint(field%first_a) == 5 .and. nint(field%first_b) == 6, "a number")
    call check(size(field%first_index) == 0, "the index of a number")
    call twr_comparison_destroy(found)
    options%atol = 2
    options%tolerate_integers = .true.
    call twr_compare_arrays(found, a, b, options)
    call twr_comparison_destroy(found)
    call twr_compare_arrays(found, a(:0), b, stat=stat)
    call check(stat == twr_error_invalid_argument, "no arrays")
  end subroutine

end program
