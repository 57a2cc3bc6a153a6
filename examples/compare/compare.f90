! Compares two histories: each entry that differs, and where.
!
! usage: compare A B
!
! Exit status: 0 the same, 1 different, 2 something could not be compared, or an error.
program compare
  use, intrinsic :: iso_fortran_env, only: error_unit, int64
  use twinrun
  implicit none
  type(twr_comparison_t) :: found
  type(twr_comparison_report_t) :: facts
  type(twr_field_report_t) :: field
  character(:), allocatable :: a, b, message
  integer :: stat
  integer(int64) :: i

  if (command_argument_count() /= 2) then
    write (error_unit, '(a)') "usage: compare A B"
    stop 2, quiet=.true.
  end if
  a = argument(1)
  b = argument(2)
  call twr_compare(found, a, b, stat=stat, errmsg=message)
  if (stat /= twr_ok .and. stat /= twr_different .and. stat /= twr_incomparable) then
    write (error_unit, '(a)') message
    stop 2, quiet=.true.
  end if

  call twr_comparison_facts(found, facts)
  do i = 1, facts%fields
    call twr_comparison_field(found, i, field)
    if (field%different == 0) cycle
    write (*, '(a, i0, a, i0, 3a, i0, a, *(1x, i0))') "step ", field%step, ", rank ", field%rank, ", ", field%field, ": ", &
        field%different, " elements differ, the first at", field%first_index
  end do
  do i = 1, facts%problems
    write (*, '(2a)') "not compared: ", twr_comparison_problem(found, i)
  end do
  write (*, '(a)') twr_comparison_verdict(found)
  call twr_comparison_destroy(found)
  if (stat == twr_different) stop 1, quiet=.true.
  if (stat == twr_incomparable) stop 2, quiet=.true.

contains

  function argument(number) result(text)
    integer, intent(in) :: number
    character(:), allocatable :: text
    integer :: length
    call get_command_argument(number, length=length)
    allocate (character(length) :: text)
    call get_command_argument(number, text)
  end function
end program
