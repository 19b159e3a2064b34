"""The LLVM printer, memory: loads and stores of scalars, of runs of lanes, of lanes at addresses of their own."""

from llvmlite import ir

from nscan.cpu.llvm_values import I8, I32, I64, Affine, Values, memory_type, size_of, type_name


class Memory(Values):
    """Prints loads and stores."""

    def print_load(self, v, dtype, slot, address):
        """Load a value from memory."""
        at = self.get(address)
        if isinstance(at, Affine):
            out = self.load_lanes(dtype, at)
        elif self.is_vector(at):
            out = self.gather(dtype, at)
        else:
            out = self.b.load(self.pointer(at, dtype), typ=memory_type(dtype), align=size_of(dtype))
        self.values[v] = self.from_memory(out, dtype)

    def pointer(self, address, dtype):
        """Pointer from a byte address."""
        return self.b.inttoptr(address, memory_type(dtype).as_pointer())

    def from_memory(self, x, dtype):
        """Bools are bytes in memory."""
        if dtype != "b1":
            return x
        zero = ir.Constant(x.type, [0] * x.type.count if isinstance(x.type, ir.VectorType) else 0)
        return self.b.icmp_unsigned("!=", x, zero)

    def to_memory(self, x, dtype):
        """Bools are bytes in memory."""
        if dtype != "b1":
            return x
        return self.b.zext(x, ir.VectorType(I8, x.type.count) if isinstance(x.type, ir.VectorType) else I8)

    def load_lanes(self, dtype, at):
        """Load lanes at a fixed distance: a vector load where the distance is the size of an element."""
        kind = ir.VectorType(memory_type(dtype), self.lanes)
        size = size_of(dtype)
        if isinstance(at.step, ir.Constant):
            if at.step.constant == size:
                return self.load_run(kind, at.base, size)
            if at.step.constant == 0:
                one = self.b.load(self.pointer(at.base, dtype), typ=memory_type(dtype), align=size)
                return self.splat(one)
            return self.gather(dtype, at)
        unit = self.b.icmp_signed("==", at.step, ir.Constant(I64, size))
        return self.choose(unit, kind, lambda: self.load_run(kind, at.base, size), lambda: self.gather(dtype, at))

    def load_run(self, kind, base, size):
        """Load lanes that lie side by side; those beyond the end of the loop are not touched."""
        def plain():
            return self.b.load(self.b.inttoptr(base, kind.as_pointer()), typ=kind, align=size)

        def masked():
            name = f"llvm.masked.load.{type_name(kind)}.p0"
            found = self.module.globals.get(name)
            if found is None:
                found = ir.Function(self.module, ir.FunctionType(kind, [kind.as_pointer(), I32, self.mask.type, kind]), name)
            zero = ir.Constant(kind, [0] * kind.count)
            pointer = self.b.inttoptr(base, kind.as_pointer())
            return self.b.call(found, [pointer, ir.Constant(I32, size), self.mask, zero])
        return self.by_mask(kind, plain, masked)

    def by_mask(self, kind, plain, masked):
        """Use the plain form where every lane is inside the loop."""
        if self.full is True:
            return plain()
        if self.full is False:
            return masked()
        return self.choose(self.full, kind, plain, masked)

    def gather(self, dtype, at):
        """Load lanes from addresses of their own."""
        kind = ir.VectorType(memory_type(dtype), self.lanes)
        addresses = self.vector(at)
        pointers = self.b.inttoptr(addresses, ir.VectorType(kind.element.as_pointer(), self.lanes))
        name = f"llvm.masked.gather.{type_name(kind)}.v{self.lanes}p0"
        found = self.module.globals.get(name)
        mask = self.mask
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(kind, [pointers.type, I32, mask.type, kind]), name)
        return self.b.call(found, [pointers, ir.Constant(I32, size_of(dtype)), mask, ir.Constant(kind, [0] * kind.count)])

    def print_store(self, dtype, slot, address, value):
        """Store a value."""
        at, x = self.get(address), self.get(value)
        if not self.lanes or not self.is_vector(at) and not self.is_vector(x):
            x = self.to_memory(x, dtype)
            self.b.store(x, self.pointer(at, dtype), align=size_of(dtype))
            return
        x = self.to_memory(self.vector(x), dtype)
        size = size_of(dtype)
        if isinstance(at, Affine) and isinstance(at.step, ir.Constant) and at.step.constant == size:
            self.store_run(x, at.base, size)
        elif isinstance(at, Affine) and not isinstance(at.step, ir.Constant):
            unit = self.b.icmp_signed("==", at.step, ir.Constant(I64, size))
            self.choose(unit, None, lambda: self.store_run(x, at.base, size), lambda: self.scatter(x, at, size))
        else:
            self.scatter(x, at, size)

    def store_run(self, x, base, size):
        """Store lanes side by side."""
        def plain():
            self.b.store(x, self.b.inttoptr(base, x.type.as_pointer()), align=size)

        def masked():
            name = f"llvm.masked.store.{type_name(x.type)}.p0"
            found = self.module.globals.get(name)
            if found is None:
                kind = ir.FunctionType(ir.VoidType(), [x.type, x.type.as_pointer(), I32, self.mask.type])
                found = ir.Function(self.module, kind, name)
            self.b.call(found, [x, self.b.inttoptr(base, x.type.as_pointer()), ir.Constant(I32, size), self.mask])
        self.by_mask(None, plain, masked)

    def scatter(self, x, at, size):
        """Store lanes to addresses of their own; a later lane wins where two meet."""
        if not self.is_vector(at):
            at = Affine(at, ir.Constant(I64, 0))
        pointers = self.b.inttoptr(self.vector(at), ir.VectorType(x.type.element.as_pointer(), self.lanes))
        name = f"llvm.masked.scatter.{type_name(x.type)}.v{self.lanes}p0"
        found = self.module.globals.get(name)
        if found is None:
            kind = ir.FunctionType(ir.VoidType(), [x.type, pointers.type, I32, self.mask.type])
            found = ir.Function(self.module, kind, name)
        self.b.call(found, [x, pointers, ir.Constant(I32, size), self.mask])
